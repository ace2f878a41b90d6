//! Every reply that a worker got about every message, and whether together they are consistent.

use super::Style;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

/// The limit in the policy of the workers' queues.
pub const ATTEMPTS: i64 = 5;

/// A receipt's time may be a little later than that of the lease.
const SLACK_MS: f64 = 1.0;

#[derive(Debug, Default)]
struct Message {
    queue: String,
    acknowledged: bool,
    /// Published again after a lost reply: if it was settled in the meantime, it is a new message.
    published_again: bool,
    deliveries: Vec<Delivery>,
    /// Calls of RETRY, by consumers and reaper: sent, and answered or given up.
    retries: Vec<(f64, f64)>,
    /// It may have been a dead letter and redriven, which resets the attempts.
    dead_lettered: bool,
    /// Confirmed answers to ACK or COMPLETE: when the call was sent, and when its answer was confirmed.
    settled: Vec<(f64, f64)>,
    /// ACK or COMPLETE was sent, and the answer is not known or not confirmed.
    maybe_settled: bool,
}

#[derive(Debug)]
pub struct Delivery {
    /// The earliest moment at which the server may have handed it out. No two deliveries of a message have the same.
    pub from: f64,
    /// When the consumer had it.
    pub at: f64,
    /// The deadline.
    pub until: f64,
    pub attempts: i64,
    pub confirmed: bool,
    /// The consumer tried to give it back.
    gave_back: bool,
    /// By RELEASE, which does not count the attempt.
    released: bool,
}

impl Delivery {
    pub fn new(from: f64, at: f64, until: f64, attempts: i64, confirmed: bool) -> Delivery {
        Delivery { from, at, until, attempts, confirmed, gave_back: false, released: false }
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
             out, {} unconfirmed; {} fenced off, {} taken back, {} workers died, {} brought back late",
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

    /// The queue of a message, as the server replied it.
    pub fn belongs(&self, id: &str, queue: &str, who: &str) {
        let known = self.message(id, |message| {
            if message.queue.is_empty() {
                message.queue = queue.to_string();
            }
            message.queue.clone()
        });
        if known != queue {
            self.complain(format!("{who} replied queue {queue} for {id}, which is of {known}"));
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
                let may_have_died = message.dead_lettered || last.attempts >= ATTEMPTS;
                let least = last.attempts + i64::from(!last.released);
                if self.style == Style::Queue
                    && !may_have_died
                    && !message.published_again
                    && last.confirmed
                    && next.attempts < least
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
                // A late DEADLETTER does the same.
                if self.style == Style::Plain && (late_retry || message.dead_lettered) {
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

    /// Changes the delivery of a message that began at `from`.
    fn delivery<T>(&self, id: &str, from: f64, change: impl FnOnce(&mut Delivery) -> T) -> Option<T> {
        self.message(id, |message| message.deliveries.iter_mut().find(|d| d.from == from).map(change))
    }

    pub fn confirmed(&self, id: &str, from: f64) {
        self.delivery(id, from, |delivery| delivery.confirmed = true);
    }

    /// Before NACK, RELEASE or DEADLETTER.
    pub fn giving_back(&self, id: &str, from: f64, how: GiveBack) {
        self.message(id, |message| message.dead_lettered |= how == GiveBack::Dead);
        self.delivery(id, from, |delivery| {
            delivery.gave_back = true;
            delivery.released = how == GiveBack::Release;
        });
    }

    /// Before EXTEND: from now on the deadline may be another one, an earlier one too. True if the delivery was confirmed;
    /// `extended` says how it went on.
    pub fn extending(&self, id: &str, from: f64) -> bool {
        self.delivery(id, from, |delivery| std::mem::take(&mut delivery.confirmed)).unwrap_or(false)
    }

    pub fn extended(&self, id: &str, from: f64, until: Option<f64>, confirmed: bool) {
        self.delivery(id, from, |delivery| {
            delivery.until = until.unwrap_or(delivery.until);
            delivery.confirmed = confirmed;
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
            self.style == Style::Queue && message.settled.len() > 1 && !message.published_again
        });
        if again {
            self.complain(format!("{id} was settled twice"));
        }
    }

    /// A receipt was not current, by a call that was answered at `now`.
    pub fn fenced(&self, id: &str, from: f64, now: f64) {
        self.count(|sum| sum.fenced += 1);
        let complaint = self.message(id, |message| {
            let mine = message.deliveries.iter().find(|d| d.from == from);
            let held = mine.is_some_and(|d| d.confirmed && now < d.until - SLACK_MS);
            (held && !message.published_again)
                .then(|| format!("{id} was refused to its holder at {now:.3}: {message:?}"))
        });
        if let Some(complaint) = complaint {
            self.complain(complaint);
        }
    }

    /// What TIMEOUTS reported to the reaper of plain workers, by a call that was sent at `sent`.
    pub fn reclaimed(&self, id: &str, sent: f64) {
        self.count(|sum| sum.claimed += 1);
        let complaint = self.message(id, |message| {
            let settled = message.settled.iter().any(|(_, settled)| *settled < sent);
            (settled && message.retries.is_empty()).then(|| format!("{id} was reported stuck after it was settled"))
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

#[derive(Clone, Copy, PartialEq)]
pub enum GiveBack {
    Retry,
    Release,
    Dead,
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
        // The receipts tell when each began, on the server's own clock.
        Style::Queue => match () {
            () if last.gave_back => Some(Reason::GivenBack),
            () if next.from >= last.until - SLACK_MS => Some(Reason::TimedOut),
            () if !last.confirmed => Some(Reason::Unconfirmed),
            () => None,
        },
        // A message comes back by RETRY only, one delivery for each: its consumer's, the reaper's, or a late one of an
        // earlier holder, who may hit a message that already waits again.
        Style::Plain => {
            let now = message.deliveries.last().map_or(next.at, |latest| latest.at.max(next.at));
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
