//! What every worker was told about every message, and whether it makes sense.

use super::Style;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

#[derive(Debug, Default)]
struct Message {
    queue: String,
    acknowledged: bool,
    /// Published again after an unclear reply: if it was settled in the meantime, this is a second life.
    published_again: bool,
    deliveries: Vec<Delivery>,
    /// Calls of RETRY, by consumers and reaper: sent, and answered or given up.
    retries: Vec<(f64, f64)>,
    /// Times when a dead letter may have been redriven, which resets the attempts.
    dead_lettered: bool,
    /// Confirmed answers to ACK or COMPLETE: when the call was sent, and when its answer was confirmed.
    settled: Vec<(f64, f64)>,
    /// ACK or COMPLETE was sent, and the answer is not known or not confirmed.
    maybe_settled: bool,
}

#[derive(Debug)]
pub struct Delivery {
    /// The earliest moment at which the server may have handed it out.
    pub from: f64,
    /// When the consumer had it.
    pub at: f64,
    /// The deadline.
    pub until: f64,
    pub attempts: i64,
    pub confirmed: bool,
    /// The consumer tried to give it back.
    gave_back: bool,
}

impl Delivery {
    pub fn new(from: f64, at: f64, until: f64, attempts: i64, confirmed: bool) -> Delivery {
        Delivery {
            from,
            at,
            until,
            attempts,
            confirmed,
            gave_back: false,
        }
    }
}

pub struct Ledger {
    style: Style,
    messages: Mutex<HashMap<String, Message>>,
    complaints: Mutex<Vec<String>>,
    report: Mutex<Report>,
    pub producing: AtomicBool,
    pub working: AtomicBool,
    pub dying: AtomicBool,
}

/// The sums of a run.
#[derive(Clone, Default)]
pub struct Report {
    pub published: usize,
    pub acknowledged: usize,
    pub deliveries: usize,
    pub settled: usize,
    pub redelivered: usize,
    pub after_give_back: usize,
    pub after_timeout: usize,
    pub after_lost_reply: usize,
    pub fenced: usize,
    pub claimed: usize,
    pub deaths: usize,
    pub brought_back: usize,
    pub lost: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} messages ({} acknowledged), {} deliveries, {} settled, {} lost; {} delivered again: {} given back, {} timed \
             out, {} unconfirmed; {} fenced off, {} claimed by the reaper, {} workers died, {} brought back by a late RETRY",
            self.published,
            self.acknowledged,
            self.deliveries,
            self.settled,
            self.lost,
            self.redelivered,
            self.after_give_back,
            self.after_timeout,
            self.after_lost_reply,
            self.fenced,
            self.claimed,
            self.deaths,
            self.brought_back
        )
    }
}

impl Ledger {
    pub fn new(style: Style) -> Ledger {
        Ledger {
            style,
            messages: Mutex::default(),
            complaints: Mutex::default(),
            report: Mutex::default(),
            producing: AtomicBool::new(true),
            working: AtomicBool::new(true),
            dying: AtomicBool::new(true),
        }
    }

    pub fn is_producing(&self) -> bool {
        self.producing.load(Ordering::Relaxed)
    }

    pub fn is_working(&self) -> bool {
        self.working.load(Ordering::Relaxed)
    }

    pub fn may_die(&self) -> bool {
        self.dying.load(Ordering::Relaxed)
    }

    pub fn complain(&self, complaint: String) {
        let mut complaints = lock(&self.complaints);
        if complaints.len() < 50 {
            eprintln!("    !! {complaint}");
        }
        complaints.push(complaint);
    }

    pub fn count(&self, add: impl FnOnce(&mut Report)) {
        add(&mut lock(&self.report));
    }

    fn message<T>(&self, id: &str, act: impl FnOnce(&mut Message) -> T) -> T {
        act(lock(&self.messages).entry(id.to_string()).or_default())
    }

    /// Before the call: from now on the message may be there.
    pub fn publishing(&self, id: &str, queue: &str) {
        self.message(id, |message| message.queue = queue.to_string());
    }

    pub fn publishing_again(&self, id: &str) {
        self.message(id, |message| message.published_again = true);
    }

    pub fn acknowledged(&self, id: &str) {
        self.message(id, |message| message.acknowledged = true);
    }

    /// The server's word on where a message belongs.
    pub fn belongs(&self, id: &str, queue: &str, who: &str) {
        let known = self.message(id, |message| {
            if message.queue.is_empty() {
                message.queue = queue.to_string();
            }
            message.queue.clone()
        });
        if known != queue {
            self.complain(format!("{who} tells queue {queue} for {id}, which is of {known}"));
        }
    }

    pub fn delivered(&self, id: &str, payload: &[u8], delivery: Delivery) {
        if !payload.starts_with(b"payload ") {
            let payload = String::from_utf8_lossy(payload).into_owned();
            self.complain(format!("{id} came with the payload {payload:?}"));
        }
        let mut report = Report::default();
        let complaint = self.message(id, |message| {
            report.deliveries += 1;
            let mut complaint = None;
            // A consumer that gets its turn late writes its delivery down after the next one.
            let place = message.deliveries.partition_point(|other| other.from <= delivery.from);
            let (before, after) = message.deliveries.split_at(place);
            report.redelivered += usize::from(!message.deliveries.is_empty());
            let pairs = [
                before.last().map(|last| (last, &delivery)),
                after.first().map(|next| (&delivery, next)),
            ];
            for (last, next) in pairs.into_iter().flatten() {
                match reason(self.style, message, last, next) {
                    Some(Reason::GivenBack) => report.after_give_back = 1,
                    Some(Reason::TimedOut) => report.after_timeout = 1,
                    Some(Reason::Unconfirmed) => report.after_lost_reply = 1,
                    None => {
                        complaint = Some(format!(
                            "{id} was delivered again at {:.3} for no reason: it was {}'s until {:.3}; {delivery:?} to {message:?}",
                            next.from, last.at, last.until
                        ))
                    }
                }
                if self.style == Style::Leases
                    && !message.dead_lettered
                    && !message.published_again
                    && last.confirmed
                    && next.attempts <= last.attempts
                {
                    let (was, is) = (last.attempts, next.attempts);
                    complaint = Some(format!("{id} has attempt {is} after attempt {was}"));
                }
            }
            let settled_before = message.settled.iter().any(|(_, settled)| *settled < delivery.from);
            if settled_before && !message.published_again {
                // A RETRY by a worker whose time is up finds the id in somebody's processing list, and stores it anew;
                // also while the one that settled it still waits for the confirmation.
                let late_retry = message.retries.iter().any(|(_, end)| *end >= message.settled[0].0);
                if self.style == Style::Plain && late_retry {
                    report.brought_back += 1;
                } else {
                    complaint = Some(format!(
                        "{id} was delivered after it was settled, at {:.3}: {message:?}",
                        delivery.from
                    ));
                }
            }
            message.deliveries.insert(place, delivery);
            complaint
        });
        self.count(|sum| {
            sum.deliveries += report.deliveries;
            sum.redelivered += report.redelivered;
            sum.after_give_back += report.after_give_back;
            sum.after_timeout += report.after_timeout;
            sum.after_lost_reply += report.after_lost_reply;
            sum.brought_back += report.brought_back;
        });
        if let Some(complaint) = complaint {
            self.complain(complaint);
        }
    }

    /// The delivery that began at `from` is safe. (Deadlines of plain workers are whole milliseconds: two deliveries of a
    /// message may have the same.)
    pub fn confirmed(&self, id: &str, from: f64) {
        self.message(id, |message| {
            for delivery in message.deliveries.iter_mut().filter(|d| d.from == from) {
                delivery.confirmed = true;
            }
        });
    }

    /// Before NACK or DEADLETTER of the delivery that ends at `until`.
    pub fn giving_back(&self, id: &str, until: f64, dead_letter: bool) {
        self.message(id, |message| {
            message.dead_lettered |= dead_letter;
            for delivery in message.deliveries.iter_mut().filter(|d| d.until == until) {
                delivery.gave_back = true;
            }
        });
    }

    /// Before EXTEND of the delivery that ends at `until`: from now on its deadline may be another one, an earlier one too.
    /// True if the delivery was confirmed; `extended` says how it went on.
    pub fn extending(&self, id: &str, until: f64) -> bool {
        self.message(id, |message| {
            let mut was_confirmed = false;
            for delivery in message.deliveries.iter_mut().filter(|d| d.until == until) {
                was_confirmed |= delivery.confirmed;
                delivery.confirmed = false;
            }
            was_confirmed
        })
    }

    pub fn extended(&self, id: &str, until: f64, new: f64, confirmed: bool) {
        self.message(id, |message| {
            for delivery in message.deliveries.iter_mut().filter(|d| d.until == until) {
                delivery.until = new;
                delivery.confirmed = confirmed;
            }
        });
    }

    /// Before the call of RETRY; `retried` closes it. A call without an answer stays open for ever.
    pub fn retrying(&self, id: &str, now: f64) {
        self.message(id, |message| message.retries.push((now, f64::INFINITY)));
    }

    pub fn retried(&self, id: &str, sent: f64, now: f64) {
        self.message(id, |message| {
            for retry in message.retries.iter_mut().filter(|retry| retry.0 == sent) {
                retry.1 = now;
            }
        });
    }

    pub fn maybe_settled(&self, id: &str) {
        self.message(id, |message| message.maybe_settled = true);
    }

    /// A confirmed answer: the message has left the system, by this call or (COMPLETE) by an earlier one.
    pub fn settled(&self, id: &str, sent: f64, now: f64) {
        let again = self.message(id, |message| {
            message.settled.push((sent, now));
            self.style == Style::Leases && message.settled.len() > 1 && !message.published_again
        });
        if again {
            self.complain(format!("{id} was settled twice"));
        }
    }

    /// ACK or NACK was refused while the lease should have held.
    pub fn fenced(&self, id: &str, until: f64, sent: f64, now: f64) {
        self.count(|sum| sum.fenced += 1);
        let doubtful = self.message(id, |message| {
            let mine = message.deliveries.iter().find(|d| d.until == until);
            !mine.is_some_and(|d| d.confirmed) || message.published_again
        });
        if !doubtful && now < until {
            self.complain(format!(
                "{id} was refused to its holder at {sent:.3}, before {until:.3}"
            ));
        }
    }

    /// What the reaper was told to be stuck, by a call that was sent at `sent` and answered at `now`.
    pub fn reclaimed(&self, id: &str, sent: f64, now: f64) {
        self.count(|sum| sum.claimed += 1);
        let complaint = self.message(id, |message| {
            let last = message.deliveries.last();
            let too_early = last.is_some_and(|d| d.confirmed && !d.gave_back && d.from < sent && d.until > now);
            if self.style == Style::Leases && too_early && !message.published_again {
                return Some(format!("{id} was reported stuck before its deadline"));
            }
            let settled = message.settled.iter().any(|(_, settled)| *settled < sent);
            let may_be_back = message.published_again || self.style == Style::Plain && !message.retries.is_empty();
            (settled && !may_be_back).then(|| format!("{id} was reported stuck after it was settled"))
        });
        if let Some(complaint) = complaint {
            self.complain(complaint);
        }
    }

    /// Ids that were acknowledged and that no call has settled, not even perhaps.
    fn lost(&self) -> Vec<String> {
        let messages = lock(&self.messages);
        let lost = |message: &Message| message.acknowledged && message.settled.is_empty() && !message.maybe_settled;
        messages
            .iter()
            .filter(|(_, message)| lost(message))
            .map(|(id, message)| format!("{id} of {} ({} deliveries)", message.queue, message.deliveries.len()))
            .collect()
    }

    /// The sums; call it when everything is drained.
    pub fn report(&self) -> Report {
        let mut report = lock(&self.report).clone();
        report.lost = self.lost().len();
        let messages = lock(&self.messages);
        report.published = messages.len();
        report.acknowledged = messages.values().filter(|message| message.acknowledged).count();
        report.settled = messages.values().filter(|message| !message.settled.is_empty()).count();
        report
    }

    #[track_caller]
    pub fn assert_nothing_lost_and_nothing_unexplained(&self) {
        let lost = self.lost();
        assert!(
            lost.is_empty(),
            "{} acknowledged messages were lost, such as {:?}",
            lost.len(),
            &lost[..lost.len().min(5)]
        );
        let complaints = lock(&self.complaints);
        assert!(
            complaints.is_empty(),
            "{} things should not have happened:\n{}",
            complaints.len(),
            complaints[..complaints.len().min(20)].join("\n")
        );
    }
}

enum Reason {
    GivenBack,
    TimedOut,
    Unconfirmed,
}

/// Why a message came a second time.
fn reason(style: Style, message: &Message, last: &Delivery, next: &Delivery) -> Option<Reason> {
    if message.published_again {
        return Some(Reason::Unconfirmed);
    }
    match style {
        // The lease says it exactly, on the server's own clock.
        Style::Leases => match () {
            () if last.gave_back => Some(Reason::GivenBack),
            () if next.from >= last.until => Some(Reason::TimedOut),
            () if !last.confirmed => Some(Reason::Unconfirmed),
            () => None,
        },
        // A message comes back by RETRY only, one delivery for each: its consumer's, the reaper's, or a late one of an
        // earlier holder, who may hit a message that already waits again.
        Style::Plain => {
            let now = message
                .deliveries
                .last()
                .map_or(next.at, |latest| latest.at.max(next.at));
            let retries = message.retries.iter().filter(|retry| retry.0 <= now).count();
            match () {
                () if retries >= message.deliveries.len() && next.at >= last.until => Some(Reason::TimedOut),
                () if retries >= message.deliveries.len() => Some(Reason::GivenBack),
                () if message.deliveries.iter().any(|delivery| !delivery.confirmed) => Some(Reason::Unconfirmed),
                () => None,
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
