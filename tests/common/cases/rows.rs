//! The table itself.

use super::Needs::{Read, ReadWrite, Write};
use super::{Example, Key, Needs, Row, Step};

const fn key(role: &'static str, key: &'static str, needs: Needs) -> Key {
    Key { role, key, needs }
}

const fn step(call: &'static str, reply: &'static str, stream: &'static [&'static str]) -> Step {
    Step { call, reply, stream }
}

const fn example(about: &'static str, setup: &'static [&'static str], step: Step) -> Example {
    Example { about, setup, step }
}

/// Two messages in work, `a` older than `b`, deadlines long past. Their scores are leases.
const IN_WORK: &[&str] =
    &["HSET @map a pa a:queue @q b pb b:queue @q", "LPUSH @q:processing a b", "ZADD @exp 1000.5 a 2000.5 b"];

/// One message in work: its removal leaves the keys empty.
const ALONE: &[&str] = &["HSET @map a pa a:queue @q", "LPUSH @q:processing a", "ZADD @exp 1000.5 a"];

/// Three that are due, one that is not, one that is stale.
const DELAYED: &[&str] = &[
    "HSET @map a pa a:queue @q b pb b:queue @r c pc c:queue @q d pd d:queue @q",
    "ZADD @delay 1000 a 2000 b 2500 orphan 3000 c 9000000000000 d",
    "ZADD @later 9000000000000 d",
];

/// The keys of the namespace `@ns` and its queue `q`, with what the commands of the queue need.
const PAYLOADS: Key = key("payloads", "@ns:payloads", ReadWrite);
const EXPIRES: Key = key("expires", "@ns:expires", ReadWrite);
const DELAYS: Key = key("delays", "@ns:delays", ReadWrite);
const QUEUES: Key = key("queues", "@ns:queues", Read);
const WAITING: Key = key("pending", "@ns:q:pending", ReadWrite);
const WORKED_ON: Key = key("processing", "@ns:q:processing", ReadWrite);
const DLQ: Key = key("dlq", "@ns:dlq", ReadWrite);
const DLQ_DATA: Key = key("dlq:data", "@ns:dlq:data", ReadWrite);

/// Two that wait, `a` the older; `b` was delivered twice before.
const QUEUED: &[&str] = &[
    "HSET @ns:payloads a pa a:queue @ns:q b pb b:queue @ns:q b:attempts 2-1000",
    "LPUSH @ns:q:pending a b",
    "HSET @ns:queues q {}",
];

/// Two that are held, `a` older than `b`, by the receipts 1-1000 and 2-2000; their leases have run out.
const HELD: &[&str] = &[
    "HSET @ns:payloads a pa a:queue @ns:q a:attempts 1-1000 b pb b:queue @ns:q b:attempts 2-2000",
    "LPUSH @ns:q:processing a b",
    "ZADD @ns:expires 1000.5 a 2000.5 b",
    "HSET @ns:queues q {}",
];

const HELD_ALONE: &[&str] = &[
    "HSET @ns:payloads a pa a:queue @ns:q a:attempts 1-1000",
    "LPUSH @ns:q:processing a",
    "ZADD @ns:expires 1000.5 a",
];

/// Three dead letters of two queues.
const BURIED: &[&str] = &[
    "HSET @ns:dlq:data a pa a:queue @ns:q a:death {} b pb b:queue @ns:r c pc c:queue @ns:q",
    "LPUSH @ns:dlq a b c",
    "HSET @ns:queues q {} r {}",
];

/// One queue with a message in every state: `a` and `b` pending, `c` in work, `d` delayed and due, `e` dead.
const EVERYWHERE: &[&str] = &[
    "HSET @ns:payloads a pa a:queue @ns:q b pb b:queue @ns:q b:attempts 2-1000 c pc c:queue @ns:q c:attempts 1-3000 \
     d pd d:queue @ns:q",
    "LPUSH @ns:q:pending a b",
    "LPUSH @ns:q:processing c",
    "ZADD @ns:expires 1000.5 c",
    "ZADD @ns:delays 1000 d",
    "HSET @ns:queues q {}",
    "HSET @ns:dlq:data e pe e:queue @ns:q",
    "LPUSH @ns:dlq e",
];

/// `c` was taken by BLMOVE, and its consumer died before ZADD; `f` was taken by RPOP.
const FAULTY: &[&str] = &[
    "HSET @ns:payloads a pa a:queue @ns:q c pc c:queue @ns:q f pf f:queue @ns:q",
    "LPUSH @ns:q:pending a",
    "LPUSH @ns:q:processing c",
    "HSET @ns:queues q {}",
];

/// `a` is in two places, `b` in the list of another queue than it says; of `g` to `l` there are only traces.
const TRACES: &[&str] = &[
    "HSET @ns:payloads a pa a:queue @ns:q b pb b:queue @ns:r k:queue @ns:q",
    "RPUSH @ns:q:pending a g",
    "RPUSH @ns:q:processing h b",
    "ZADD @ns:delays 9000000000000 a 9000000000000 i",
    "ZADD @ns:expires 8000000000000.5 b 1 l",
    "HSET @ns:queues q {} r {}",
    "RPUSH @ns:dlq j e",
    "HSET @ns:dlq:data e pe e:queue @ns:q",
];

const LOOKED_AT: &[Key] = &[
    key("payloads", "@ns:payloads", Read),
    key("expires", "@ns:expires", Read),
    key("delays", "@ns:delays", Read),
    QUEUES,
    key("dlq", "@ns:dlq", Read),
    key("dlq:data", "@ns:dlq:data", Read),
    key("pending", "@ns:q:pending", Read),
    key("processing", "@ns:q:processing", Read),
];

const REMOVED_FROM: &[Key] =
    &[PAYLOADS, EXPIRES, DELAYS, QUEUES, DLQ, DLQ_DATA, key("once", "@ns:once", ReadWrite), WAITING, WORKED_ON];

pub const ROWS: &[Row] = &[
    Row {
        name: "RMQ.COMPLETE",
        syntax: "payload_map processing expire_monitor id [id ...]",
        keys: &[
            key("payload_map", "@map", Write),
            key("processing", "@q:processing", Write),
            key("expire_monitor", "@exp", Write),
        ],
        derived: &[],
        adds_data: false,
        setup: IN_WORK,
        effect: step(
            "RMQ.COMPLETE @map @q:processing @exp a",
            "OK",
            &["RPOP @q:processing", "ZREM @exp a", "HDEL @map a a:queue"],
        ),
        idle: step("RMQ.COMPLETE @map @q:processing @exp none", "OK", &[]),
        more: &[
            example(
                "many ids share one RPOP, one ZREM and one HDEL",
                IN_WORK,
                step(
                    "RMQ.COMPLETE @map @q:processing @exp b none a",
                    "OK",
                    &["RPOP @q:processing 2", "ZREM @exp b a", "HDEL @map b b:queue a a:queue"],
                ),
            ),
            example(
                "the last message takes its keys with it",
                ALONE,
                step(
                    "RMQ.COMPLETE @map @q:processing @exp a",
                    "OK",
                    &["RPOP @q:processing", "ZREM @exp a", "HDEL @map a a:queue"],
                ),
            ),
            example(
                "only the keys that change are sent",
                &["HSET @map a pa"],
                step("RMQ.COMPLETE @map @q:processing @exp a", "OK", &["HDEL @map a"]),
            ),
            example(
                "the count of deliveries goes too",
                &["HSET @map a pa a:queue @q a:attempts 3"],
                step("RMQ.COMPLETE @map @q:processing @exp a", "OK", &["HDEL @map a a:queue a:attempts"]),
            ),
        ],
    },
    Row {
        name: "RMQ.RETRY",
        syntax: "payload_map delay_tasks expire_monitor processing id payload delay [topic]",
        keys: &[
            key("payload_map", "@map", Write),
            key("delay_tasks", "@delay", Write),
            key("expire_monitor", "@exp", Write),
            key("processing", "@q:processing", Write),
        ],
        derived: &[],
        adds_data: true,
        setup: IN_WORK,
        effect: step(
            "RMQ.RETRY @map @delay @exp @q:processing a new 10",
            "OK",
            &["HSET @map a new", "ZADD @delay <time> a", "ZREM @exp a", "RPOP @q:processing"],
        ),
        idle: step("RMQ.RETRY @map @delay @exp @q:processing none new 10", "NOMSG ...", &[]),
        more: &[
            example(
                "a missing queue is restored",
                &["LPUSH @q:processing a"],
                step(
                    "RMQ.RETRY @map @delay @exp @q:processing a new 0 topic",
                    "OK",
                    &["HSET @map a new a:queue @q", "ZADD @delay <time> a", "RPOP @q:processing"],
                ),
            ),
            example(
                "a second retry moves the due time",
                &["HSET @map a pa a:queue @q", "ZADD @delay 1000 a"],
                step(
                    "RMQ.RETRY @map @delay @exp @q:processing a new 0.25",
                    "OK",
                    &["HSET @map a new", "ZADD @delay <time> a"],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.DELAYTICK",
        syntax: "delay_tasks payload_map batch",
        keys: &[key("delay_tasks", "@delay", ReadWrite), key("payload_map", "@map", Read)],
        derived: &[key("pending", "@q:pending", Write), key("pending", "@r:pending", Write)],
        adds_data: false,
        setup: DELAYED,
        effect: step(
            "RMQ.DELAYTICK @delay @map 10",
            "[[a @q] [b @r] [c @q]]",
            &["LPUSH @q:pending a c", "LPUSH @r:pending b", "ZREM @delay a b c orphan"],
        ),
        idle: step("RMQ.DELAYTICK @later @map 10", "[]", &[]),
        more: &[
            example(
                "one message is one LPUSH and one ZREM",
                &["HSET @map a pa a:queue @q", "ZADD @delay 1000 a"],
                step("RMQ.DELAYTICK @delay @map 10", "[[a @q]]", &["LPUSH @q:pending a", "ZREM @delay a"]),
            ),
            example(
                "a stale id is only removed",
                &["HSET @map other x", "ZADD @delay 1000 a"],
                step("RMQ.DELAYTICK @delay @map 10", "[]", &["ZREM @delay a"]),
            ),
            example(
                "a list that is there already gets the id on its left",
                &["HSET @map a pa a:queue @q", "ZADD @delay 1000 a", "LPUSH @q:pending z"],
                step("RMQ.DELAYTICK @delay @map 10", "[[a @q]]", &["LPUSH @q:pending a", "ZREM @delay a"]),
            ),
            example(
                "a queue whose key is no list keeps its ids",
                &["HSET @map a pa a:queue @q b pb b:queue @r", "ZADD @delay 1000 a 2000 b", "SET @q:pending x"],
                step("RMQ.DELAYTICK @delay @map 1", "[[b @r]]", &["LPUSH @r:pending b", "ZREM @delay b"]),
            ),
        ],
    },
    Row {
        name: "RMQ.TIMEOUTS",
        syntax: "expire_monitor payload_map target_time batch [ALL] [CLAIM claim]",
        keys: &[key("expire_monitor", "@exp", ReadWrite), key("payload_map", "@map", Read)],
        derived: &[key("processing", "@q:processing", Write)],
        adds_data: false,
        setup: IN_WORK,
        effect: step("RMQ.TIMEOUTS @exp @map * 1", "[[a pa @q]]", &["RPOP @q:processing", "ZREM @exp a"]),
        idle: step("RMQ.TIMEOUTS @exp @map 1000 10", "[]", &[]),
        more: &[
            example(
                "a batch shares one ZREM",
                IN_WORK,
                step(
                    "RMQ.TIMEOUTS @exp @map 5000 10",
                    "[[a pa @q] [b pb @q]]",
                    &["RPOP @q:processing 2", "ZREM @exp a b"],
                ),
            ),
            example(
                "a claim is a new deadline and nothing else",
                IN_WORK,
                step(
                    "RMQ.TIMEOUTS @exp @map * 10 CLAIM 60000",
                    "[[a pa @q] [b pb @q]]",
                    &["ZADD @exp <time> a <time> b"],
                ),
            ),
            example(
                "what is not in processing leaves the monitor unreported",
                &["HSET @map a pa a:queue @q", "ZADD @exp 1000 a 2000 orphan"],
                step("RMQ.TIMEOUTS @exp @map * 10", "[]", &["ZREM @exp a orphan"]),
            ),
            example(
                "with ALL it is reported",
                &["HSET @map a pa a:queue @q", "ZADD @exp 1000 a 2000 orphan"],
                step("RMQ.TIMEOUTS @exp @map * 10 ALL", "[[a pa @q]]", &["ZREM @exp a orphan"]),
            ),
        ],
    },
    Row {
        name: "RMQ.PARSEERR",
        syntax: "parse_error_map parse_error_queue processing expire_monitor payload_map id payload topic error \
                 timestamp [expire_days] [max_count] [supports_hexpire]",
        keys: &[
            key("parse_error_map", "@errors", Write),
            key("parse_error_queue", "@error-ids", Write),
            key("processing", "@q:processing", Write),
            key("expire_monitor", "@exp", Write),
            key("payload_map", "@map", Write),
        ],
        derived: &[],
        adds_data: true,
        setup: IN_WORK,
        effect: step(
            "RMQ.PARSEERR @errors @error-ids @q:processing @exp @map a pa topic boom 123",
            "OK",
            &[
                "HSET @errors a <json>",
                "LPUSH @error-ids a",
                "RPOP @q:processing",
                "ZREM @exp a",
                "HDEL @map a a:queue",
            ],
        ),
        idle: step(
            "RMQ.PARSEERR @errors @error-ids @q:processing @exp @map a:queue pa topic boom 123",
            "ERR id must not end in ...",
            &[],
        ),
        more: &[
            example(
                "the same id again is there once, at the head",
                &["HSET @errors a old b old", "RPUSH @error-ids b a"],
                step(
                    "RMQ.PARSEERR @errors @error-ids @q:processing @exp @map a pa topic boom 123",
                    "OK",
                    &["HSET @errors a <json>", "LREM @error-ids -1 a", "LPUSH @error-ids a"],
                ),
            ),
            example(
                "an id that is at the head already stays there",
                &["HSET @errors a old", "RPUSH @error-ids a"],
                step(
                    "RMQ.PARSEERR @errors @error-ids @q:processing @exp @map a pa topic boom 123",
                    "OK",
                    &["HSET @errors a <json>"],
                ),
            ),
            example(
                "trimming is one RPOP and one HDEL",
                &["HSET @errors x old y old z old", "LPUSH @error-ids x y z"],
                step(
                    "RMQ.PARSEERR @errors @error-ids @q:processing @exp @map a pa topic boom 123 \"\" 2",
                    "OK",
                    &["HSET @errors a <json>", "LPUSH @error-ids a", "RPOP @error-ids 2", "HDEL @errors x y"],
                ),
            ),
            example(
                "ids at the tail without record are dropped",
                &["HSET @errors z old", "LPUSH @error-ids x y z"],
                step(
                    "RMQ.PARSEERR @errors @error-ids @q:processing @exp @map a pa topic boom 123",
                    "OK",
                    &["RPOP @error-ids 2", "HSET @errors a <json>", "LPUSH @error-ids a"],
                ),
            ),
            example(
                "without field expiry the whole hash gets an absolute end",
                &[],
                step(
                    "RMQ.PARSEERR @errors @error-ids @q:processing @exp @map a pa topic boom 123 1 \"\" 0",
                    "OK",
                    &["HSET @errors a <json>", "LPUSH @error-ids a", "PEXPIREAT @errors <time>"],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.PUBLISH",
        syntax: "namespace [URGENT] [DELAY delay|AT at] [ONCE once] TO queue id payload [id payload ...]",
        keys: &[],
        derived: &[PAYLOADS, QUEUES, WAITING],
        adds_data: true,
        setup: QUEUED,
        effect: step(
            "RMQ.PUBLISH @ns TO q n pn",
            "[n]",
            &["HSET @ns:payloads n pn n:queue @ns:q", "LPUSH @ns:q:pending n"],
        ),
        idle: step("RMQ.PUBLISH @ns TO other n pn a pa", "EXISTS ...", &[]),
        more: &[
            example("an id that is there is left alone", QUEUED, step("RMQ.PUBLISH @ns TO q a pa", "[nil]", &[])),
            example(
                "several messages share one HSET and one push",
                QUEUED,
                step(
                    "RMQ.PUBLISH @ns URGENT TO q n pn a pa o po",
                    "[n nil o]",
                    &["HSET @ns:payloads n pn n:queue @ns:q o po o:queue @ns:q", "RPUSH @ns:q:pending o n"],
                ),
            ),
            example(
                "the first message of a queue enters it among the queues",
                &[],
                step(
                    "RMQ.PUBLISH @ns TO q n pn",
                    "[n]",
                    &["HSET @ns:payloads n pn n:queue @ns:q", "LPUSH @ns:q:pending n", "HSET @ns:queues q {}"],
                ),
            ),
            example(
                "a delay becomes an absolute time",
                QUEUED,
                step(
                    "RMQ.PUBLISH @ns DELAY 60000 TO q n pn o po",
                    "[n o]",
                    &["HSET @ns:payloads n pn n:queue @ns:q o po o:queue @ns:q", "ZADD @ns:delays <time> n <time> o"],
                ),
            ),
            example(
                "a Unix time is taken as it is",
                QUEUED,
                step(
                    "RMQ.PUBLISH @ns AT 100000000000 TO q n pn",
                    "[n]",
                    &["HSET @ns:payloads n pn n:queue @ns:q", "ZADD @ns:delays 100000000000 n"],
                ),
            ),
            example(
                "what is published once is remembered, and what is over forgotten",
                &["HSET @ns:queues q {}", "LPUSH @ns:q:pending z", "ZADD @ns:once 1000 old 9000000000000 done"],
                step(
                    "RMQ.PUBLISH @ns ONCE 60000 TO q n pn done pd",
                    "[n nil]",
                    &[
                        "HSET @ns:payloads n pn n:queue @ns:q",
                        "ZREM @ns:once old",
                        "ZADD @ns:once <time> n",
                        "LPUSH @ns:q:pending n",
                    ],
                ),
            ),
            example(
                "what is left of an earlier message's deliveries goes",
                &["HSET @ns:payloads n:attempts 4", "HSET @ns:queues q {}"],
                step(
                    "RMQ.PUBLISH @ns TO q n pn",
                    "[n]",
                    &["HSET @ns:payloads n pn n:queue @ns:q", "HDEL @ns:payloads n:attempts", "LPUSH @ns:q:pending n"],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.RESERVE",
        syntax: "namespace lease_ms [COUNT count] [BLOCK block] FROM queue [queue ...]",
        keys: &[],
        derived: &[WAITING, WORKED_ON, PAYLOADS, EXPIRES, DELAYS, QUEUES],
        adds_data: false,
        setup: QUEUED,
        effect: step(
            "RMQ.RESERVE @ns 60000 FROM q",
            "[[a pa 1-<time> 1 q]]",
            &[
                "RPOPLPUSH @ns:q:pending @ns:q:processing",
                "HSET @ns:payloads a:attempts 1-<time>",
                "ZADD @ns:expires <time> a",
            ],
        ),
        idle: step("RMQ.RESERVE @ns 60000 FROM none", "nil", &[]),
        more: &[
            example(
                "many share one command per key",
                QUEUED,
                step(
                    "RMQ.RESERVE @ns 60000 COUNT 5 BLOCK 0 FROM none q",
                    "[[a pa 1-<time> 1 q] [b pb 3-<time> 3 q]]",
                    &[
                        "RPOP @ns:q:pending 2",
                        "LPUSH @ns:q:processing a b",
                        "HSET @ns:payloads a:attempts 1-<time> b:attempts 3-<time>",
                        "ZADD @ns:expires <time> a <time> b",
                    ],
                ),
            ),
            example(
                "ids without payload are dropped on the way",
                &[
                    "HSET @ns:payloads a pa a:queue @ns:q ghost:queue @ns:q",
                    "RPUSH @ns:q:pending a ghost",
                    "HSET @ns:queues q {}",
                ],
                step(
                    "RMQ.RESERVE @ns 60000 FROM q",
                    "[[a pa 1-<time> 1 q]]",
                    &[
                        "RPOP @ns:q:pending 2",
                        "HDEL @ns:payloads ghost:queue",
                        "LPUSH @ns:q:processing a",
                        "HSET @ns:payloads a:attempts 1-<time>",
                        "ZADD @ns:expires <time> a",
                    ],
                ),
            ),
            example(
                "nothing but ids without payload leaves nothing",
                &["HSET @ns:payloads other x", "RPUSH @ns:q:pending ghost"],
                step("RMQ.RESERVE @ns 60000 FROM q", "nil", &["RPOP @ns:q:pending"]),
            ),
            example(
                "what is due becomes pending, and leases that ran out come back",
                &[
                    "HSET @ns:payloads a pa a:queue @ns:q a:attempts 1-1000 b pb b:queue @ns:r",
                    "LPUSH @ns:q:processing a",
                    "ZADD @ns:expires 1000.5 a",
                    "ZADD @ns:delays 1000 b",
                ],
                step(
                    "RMQ.RESERVE @ns 60000 FROM none",
                    "nil",
                    &[
                        "RPOP @ns:q:processing",
                        "RPUSH @ns:q:pending a",
                        "HSET @ns:payloads a:attempts \"1-1000500 lease ran out\"",
                        "ZREM @ns:expires a",
                        "LPUSH @ns:r:pending b",
                        "ZREM @ns:delays b",
                        "HSET @ns:queues q {} r {}",
                    ],
                ),
            ),
            example(
                "a last lease that ran out is a death",
                &[
                    "HSET @ns:payloads a pa a:queue @ns:q a:attempts 1-1000",
                    "LPUSH @ns:q:processing a",
                    "ZADD @ns:expires 1000.5 a",
                    "HSET @ns:queues q {\"attempts\":1}",
                ],
                step(
                    "RMQ.RESERVE @ns 60000 FROM none",
                    "nil",
                    &[
                        "RPOP @ns:q:processing",
                        "HSET @ns:dlq:data a pa a:queue @ns:q a:death ...",
                        "LPUSH @ns:dlq a",
                        "HDEL @ns:payloads a a:queue a:attempts",
                        "ZREM @ns:expires a",
                    ],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.ACK",
        syntax: "namespace id receipt [id receipt ...]",
        keys: &[],
        derived: &[PAYLOADS, EXPIRES, WORKED_ON],
        adds_data: false,
        setup: HELD,
        effect: step(
            "RMQ.ACK @ns a 1-1000",
            "1",
            &["RPOP @ns:q:processing", "ZREM @ns:expires a", "HDEL @ns:payloads a a:queue a:attempts"],
        ),
        idle: step("RMQ.ACK @ns a 1-1001 none 1-1", "0", &[]),
        more: &[
            example(
                "many share one ZREM and one HDEL",
                HELD,
                step(
                    "RMQ.ACK @ns b 2-2000 a 1-1000 none 5-5",
                    "2",
                    &[
                        "RPOP @ns:q:processing 2",
                        "ZREM @ns:expires b a",
                        "HDEL @ns:payloads b b:queue b:attempts a a:queue a:attempts",
                    ],
                ),
            ),
            example(
                "the last message takes its keys with it",
                HELD_ALONE,
                step(
                    "RMQ.ACK @ns a 1-1000",
                    "1",
                    &["RPOP @ns:q:processing", "ZREM @ns:expires a", "HDEL @ns:payloads a a:queue a:attempts"],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.NACK",
        syntax: "namespace id receipt [DELAY delay|DEAD] [ERROR error] [PAYLOAD payload]",
        keys: &[],
        derived: &[PAYLOADS, EXPIRES, DELAYS, QUEUES, WORKED_ON, DLQ, DLQ_DATA],
        adds_data: false,
        setup: HELD,
        effect: step(
            "RMQ.NACK @ns a 1-1000",
            "RETRY",
            &[
                "RPOP @ns:q:processing",
                "ZREM @ns:expires a",
                "HSET @ns:payloads a:attempts 1-<time>",
                "ZADD @ns:delays <time> a",
            ],
        ),
        idle: step("RMQ.NACK @ns a 1-1001", "nil", &[]),
        more: &[
            example(
                "a new payload and the error are stored",
                HELD,
                step(
                    "RMQ.NACK @ns a 1-1000 DELAY 0 PAYLOAD new ERROR broken",
                    "RETRY",
                    &[
                        "RPOP @ns:q:processing",
                        "ZREM @ns:expires a",
                        "HSET @ns:payloads a new a:attempts \"1-<time> broken\"",
                        "ZADD @ns:delays <time> a",
                    ],
                ),
            ),
            example(
                "what is rejected dies",
                HELD,
                step(
                    "RMQ.NACK @ns a 1-1000 DEAD",
                    "DEAD",
                    &[
                        "RPOP @ns:q:processing",
                        "ZREM @ns:expires a",
                        "HSET @ns:dlq:data a pa a:queue @ns:q a:death <json>",
                        "LPUSH @ns:dlq a",
                        "HDEL @ns:payloads a a:queue a:attempts",
                    ],
                ),
            ),
            example(
                "a second death replaces the first",
                &[
                    "HSET @ns:payloads a pa a:queue @ns:q a:attempts 1-1000",
                    "LPUSH @ns:q:processing a",
                    "ZADD @ns:expires 1000.5 a",
                    "HSET @ns:queues q {\"attempts\":1}",
                    "HSET @ns:dlq:data a old z pz",
                    "RPUSH @ns:dlq z a",
                ],
                step(
                    "RMQ.NACK @ns a 1-1000",
                    "DEAD",
                    &[
                        "RPOP @ns:q:processing",
                        "ZREM @ns:expires a",
                        "HSET @ns:dlq:data a pa a:queue @ns:q a:death <json>",
                        "LREM @ns:dlq -1 a",
                        "LPUSH @ns:dlq a",
                        "HDEL @ns:payloads a a:queue a:attempts",
                    ],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.RELEASE",
        syntax: "namespace id receipt [id receipt ...]",
        keys: &[],
        derived: &[PAYLOADS, EXPIRES, QUEUES, WORKED_ON, WAITING],
        adds_data: false,
        setup: HELD,
        effect: step(
            "RMQ.RELEASE @ns a 1-1000",
            "1",
            &[
                "RPOP @ns:q:processing",
                "ZREM @ns:expires a",
                "RPUSH @ns:q:pending a",
                "HSET @ns:payloads a:attempts 0-<time>",
            ],
        ),
        idle: step("RMQ.RELEASE @ns a 1-1001", "0", &[]),
        more: &[example(
            "many share one command per key",
            HELD,
            step(
                "RMQ.RELEASE @ns a 1-1000 b 2-2000",
                "2",
                &[
                    "RPOP @ns:q:processing 2",
                    "ZREM @ns:expires a b",
                    "RPUSH @ns:q:pending b a",
                    "HSET @ns:payloads b:attempts 1-<time> a:attempts 0-<time>",
                ],
            ),
        )],
    },
    Row {
        name: "RMQ.EXTEND",
        syntax: "namespace lease_ms id receipt [id receipt ...]",
        keys: &[],
        derived: &[PAYLOADS, EXPIRES],
        adds_data: false,
        setup: HELD,
        effect: step("RMQ.EXTEND @ns 60000 a 1-1000", "[1]", &["ZADD @ns:expires <time> a"]),
        idle: step("RMQ.EXTEND @ns 60000 a 1-1001 none 1-1", "[0 0]", &[]),
        more: &[example(
            "many share one ZADD",
            HELD,
            step("RMQ.EXTEND @ns 60000 b 2-2000 none 1-1 a 1-1000", "[1 0 1]", &["ZADD @ns:expires <time> b <time> a"]),
        )],
    },
    Row {
        name: "RMQ.DEADLETTER",
        syntax: "dlq_map dlq expire_monitor payload_map processing id payload [topic]",
        keys: &[
            key("dlq_map", "@dead", Write),
            key("dlq", "@dead-ids", Write),
            key("expire_monitor", "@exp", Write),
            key("payload_map", "@map", ReadWrite),
            key("processing", "@q:processing", Write),
        ],
        derived: &[],
        adds_data: true,
        setup: IN_WORK,
        effect: step(
            "RMQ.DEADLETTER @dead @dead-ids @exp @map @q:processing a last",
            "OK",
            &[
                "HSET @dead a last a:queue @q",
                "LPUSH @dead-ids a",
                "RPOP @q:processing",
                "ZREM @exp a",
                "HDEL @map a a:queue",
            ],
        ),
        idle: step("RMQ.DEADLETTER @dead @dead-ids @exp @map @q:processing none last", "NOMSG ...", &[]),
        more: &[
            example(
                "an id is once among the dead letters",
                &["HSET @map a pa a:queue @q", "HSET @dead a old a:queue @old z pz", "RPUSH @dead-ids z a"],
                step(
                    "RMQ.DEADLETTER @dead @dead-ids @exp @map @q:processing a last topic",
                    "OK",
                    &[
                        "HSET @dead a last a:queue @q",
                        "LREM @dead-ids -1 a",
                        "LPUSH @dead-ids a",
                        "HDEL @map a a:queue",
                    ],
                ),
            ),
            example(
                "an id that is first among the dead letters stays there",
                &["HSET @map a pa a:queue @q", "HSET @dead a old", "RPUSH @dead-ids a"],
                step(
                    "RMQ.DEADLETTER @dead @dead-ids @exp @map @q:processing a last",
                    "OK",
                    &["HSET @dead a last a:queue @q", "HDEL @map a a:queue"],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.REDRIVE",
        syntax: "namespace COUNT count [QUEUE queue]|IDS id [id ...]",
        keys: &[],
        derived: &[DLQ, DLQ_DATA, PAYLOADS, QUEUES, WAITING, key("pending", "@ns:r:pending", ReadWrite)],
        adds_data: false,
        setup: BURIED,
        effect: step(
            "RMQ.REDRIVE @ns COUNT 10",
            "[[a q] [b r] [c q]]",
            &[
                "RPOP @ns:dlq 3",
                "LPUSH @ns:q:pending a c",
                "LPUSH @ns:r:pending b",
                "HSET @ns:payloads a pa a:queue @ns:q b pb b:queue @ns:r c pc c:queue @ns:q",
                "HDEL @ns:dlq:data a a:queue a:death b b:queue c c:queue",
            ],
        ),
        idle: step("RMQ.REDRIVE @ns IDS none", "[]", &[]),
        more: &[
            example(
                "the attempts start anew, and a queue that was gone is entered",
                &["HSET @ns:dlq:data a pa a:queue @ns:q", "RPUSH @ns:dlq a", "HSET @ns:payloads a:attempts 7"],
                step(
                    "RMQ.REDRIVE @ns COUNT 10 QUEUE q",
                    "[[a q]]",
                    &[
                        "RPOP @ns:dlq",
                        "LPUSH @ns:q:pending a",
                        "HSET @ns:payloads a pa a:queue @ns:q",
                        "HDEL @ns:dlq:data a a:queue",
                        "HDEL @ns:payloads a:attempts",
                        "HSET @ns:queues q {}",
                    ],
                ),
            ),
            example(
                "those that are named, from wherever they are",
                BURIED,
                step(
                    "RMQ.REDRIVE @ns IDS b none",
                    "[[b r]]",
                    &[
                        "LREM @ns:dlq -1 b",
                        "LPUSH @ns:r:pending b",
                        "HSET @ns:payloads b pb b:queue @ns:r",
                        "HDEL @ns:dlq:data b b:queue",
                    ],
                ),
            ),
            example(
                "one that must stay does not hold up the others",
                &[
                    "HSET @ns:dlq:data a pa a:queue @ns:q b pb b:queue @ns:r",
                    "RPUSH @ns:dlq b a",
                    "SET @ns:q:pending x",
                    "HSET @ns:queues r {}",
                ],
                step(
                    "RMQ.REDRIVE @ns COUNT 10",
                    "[[b r]]",
                    &[
                        "LREM @ns:dlq -1 b",
                        "LPUSH @ns:r:pending b",
                        "HSET @ns:payloads b pb b:queue @ns:r",
                        "HDEL @ns:dlq:data b b:queue",
                    ],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.POLICY",
        syntax: "namespace [queue [[ATTEMPTS attempts] [BACKOFF first_ms max_ms] [PAUSED paused]|RESET]]",
        keys: &[],
        derived: &[key("queues", "@ns:queues", ReadWrite)],
        adds_data: true,
        setup: &["HSET @ns:queues q {\"attempts\":3}"],
        effect: step(
            "RMQ.POLICY @ns q ATTEMPTS 5 PAUSED yes",
            "[attempts 5 backoff_first_ms 1000 backoff_max_ms 3600000 paused 1]",
            &["HSET @ns:queues q <json>"],
        ),
        idle: step("RMQ.POLICY @ns q", "[attempts 3 backoff_first_ms 1000 backoff_max_ms 3600000 paused 0]", &[]),
        more: &[
            example(
                "replies with what is stored for each queue",
                &["HSET @ns:queues q {\"attempts\":3}"],
                step("RMQ.POLICY @ns", "[q [attempts 3]]", &[]),
            ),
            example(
                "what is the same already changes nothing",
                &["HSET @ns:queues q {\"attempts\":3}"],
                step(
                    "RMQ.POLICY @ns q ATTEMPTS 3",
                    "[attempts 3 backoff_first_ms 1000 backoff_max_ms 3600000 paused 0]",
                    &[],
                ),
            ),
            example(
                "what is forgotten leaves the queues",
                &["HSET @ns:queues q {\"attempts\":3}"],
                step(
                    "RMQ.POLICY @ns q RESET",
                    "[attempts 25 backoff_first_ms 1000 backoff_max_ms 3600000 paused 0]",
                    &["HDEL @ns:queues q"],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.STATS",
        syntax: "namespace [queue [queue ...]]",
        keys: &[],
        derived: LOOKED_AT,
        adds_data: false,
        setup: EVERYWHERE,
        effect: step(
            "RMQ.STATS @ns",
            "[delayed 1 due 1 next_due_in_ms 0 leased 1 overdue 1 dead 1 \
             queues [q [pending 2 processing 1 waiting_clients 0 next_age_ms nil ...",
            &[],
        ),
        idle: step(
            "RMQ.STATS @none q",
            "[delayed 0 due 0 next_due_in_ms nil leased 0 overdue 0 dead 0 \
             queues [q [pending 0 processing 0 waiting_clients 0 next_age_ms nil ...",
            &[],
        ),
        more: &[],
    },
    Row {
        name: "RMQ.PEEK",
        syntax: "namespace [OFFSET offset] [COUNT count] [NOPAYLOAD] PENDING queue|PROCESSING queue|DELAYED [queue]|\
                 OVERDUE [queue]|DEAD [queue]|IDS id [id ...]",
        keys: &[],
        derived: LOOKED_AT,
        adds_data: false,
        setup: EVERYWHERE,
        effect: step(
            "RMQ.PEEK @ns IDS a c none",
            "[[id a state pending queue q attempts 0 payload pa] \
             [id c state processing queue q attempts 1 since_ms 3 deadline_ms 1000 payload pc] nil]",
            &[],
        ),
        idle: step("RMQ.PEEK @ns PENDING none", "[]", &[]),
        more: &[
            example(
                "what is taken next comes first",
                EVERYWHERE,
                step(
                    "RMQ.PEEK @ns OFFSET 1 NOPAYLOAD PENDING q",
                    "[[id b state pending queue q attempts 2 since_ms 1]]",
                    &[],
                ),
            ),
            example(
                "delayed ones, and the dead",
                EVERYWHERE,
                step("RMQ.PEEK @ns DELAYED q", "[[id d state delayed queue q attempts 0 due_ms 1000 payload pd]]", &[]),
            ),
        ],
    },
    Row {
        name: "RMQ.CANCEL",
        syntax: "namespace [WAITING] IDS id [id ...]",
        keys: &[],
        derived: REMOVED_FROM,
        adds_data: false,
        setup: EVERYWHERE,
        effect: step(
            "RMQ.CANCEL @ns IDS a c none d a",
            "[pending processing nil delayed nil]",
            &[
                "RPOP @ns:q:pending",
                "RPOP @ns:q:processing",
                "ZREM @ns:expires c",
                "ZREM @ns:delays d",
                "HDEL @ns:payloads a a:queue c c:queue c:attempts d d:queue",
            ],
        ),
        idle: step("RMQ.CANCEL @ns WAITING IDS c none", "[nil nil]", &[]),
        more: &[example(
            "a live and a dead one alike, and what ONCE remembers",
            &[
                "HSET @ns:payloads e live e:queue @ns:q",
                "LPUSH @ns:q:pending e",
                "HSET @ns:queues q {}",
                "ZADD @ns:once 9000000000000 e",
                "HSET @ns:dlq:data e pe e:queue @ns:q e:death {}",
                "LPUSH @ns:dlq e",
            ],
            step(
                "RMQ.CANCEL @ns IDS e",
                "[pending]",
                &[
                    "RPOP @ns:q:pending",
                    "HDEL @ns:payloads e e:queue",
                    "RPOP @ns:dlq",
                    "HDEL @ns:dlq:data e e:queue e:death",
                    "ZREM @ns:once e",
                ],
            ),
        )],
    },
    Row {
        name: "RMQ.RESCHEDULE",
        syntax: "namespace delay_ms IDS id [id ...]",
        keys: &[],
        derived: &[PAYLOADS, EXPIRES, DELAYS, QUEUES, DLQ, DLQ_DATA, WAITING, WORKED_ON],
        adds_data: false,
        setup: EVERYWHERE,
        effect: step(
            "RMQ.RESCHEDULE @ns 1000 IDS b c none d",
            "[1 0 0 1]",
            &[
                "LREM @ns:q:pending -1 b",
                "HSET @ns:payloads b:attempts 2-<time> d:attempts 0-<time>",
                "ZADD @ns:delays <time> b <time> d",
            ],
        ),
        idle: step("RMQ.RESCHEDULE @ns 0 IDS a c none", "[1 0 0]", &[]),
        more: &[],
    },
    Row {
        name: "RMQ.PURGE",
        syntax: "namespace [COUNT count] PENDING queue|DELAYED [queue]|DEAD [queue]",
        keys: &[],
        derived: REMOVED_FROM,
        adds_data: false,
        setup: EVERYWHERE,
        effect: step(
            "RMQ.PURGE @ns PENDING q",
            "2",
            &["RPOP @ns:q:pending 2", "HDEL @ns:payloads a a:queue b b:queue b:attempts"],
        ),
        idle: step("RMQ.PURGE @ns PENDING none", "0", &[]),
        more: &[
            example(
                "delayed ones",
                EVERYWHERE,
                step("RMQ.PURGE @ns DELAYED", "1", &["ZREM @ns:delays d", "HDEL @ns:payloads d d:queue"]),
            ),
            example(
                "the dead, and the queue with them where nothing is left of it",
                BURIED,
                step(
                    "RMQ.PURGE @ns COUNT 5 DEAD r",
                    "1",
                    &["LREM @ns:dlq -1 b", "HDEL @ns:dlq:data b b:queue", "HDEL @ns:queues r"],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.AUDIT",
        syntax: "namespace [CURSOR cursor] [COUNT count]",
        keys: &[],
        derived: LOOKED_AT,
        adds_data: false,
        setup: FAULTY,
        effect: step("RMQ.AUDIT @ns", "[0 [lost [1 [f]] without_deadline [1 [c]]]]", &[]),
        idle: step("RMQ.AUDIT @none", "[0 []]", &[]),
        more: &[
            example("nothing is wrong", EVERYWHERE, step("RMQ.AUDIT @ns", "[0 []]", &[])),
            example(
                "one kind of fault after the other",
                TRACES,
                step(
                    "RMQ.AUDIT @ns COUNT 1000",
                    "[0 [pending_without_payload [1 [g]] processing_without_payload [1 [h]] \
                     delayed_without_payload [1 [i]] dead_without_payload [1 [j]] in_two_places [1 [a]] \
                     wrong_queue [1 [b]] orphan_fields [1 [k]] stale_deadlines [1 [l]]]]",
                    &[],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.REPAIR",
        syntax: "namespace [CURSOR cursor] [COUNT count]",
        keys: &[],
        derived: &[PAYLOADS, EXPIRES, DELAYS, QUEUES, DLQ, DLQ_DATA, WAITING, WORKED_ON],
        adds_data: false,
        setup: FAULTY,
        effect: step(
            "RMQ.REPAIR @ns",
            "[0 [lost [1 [f]] without_deadline [1 [c]]]]",
            &["ZADD @ns:expires <time> c", "RPUSH @ns:q:pending f"],
        ),
        idle: step("RMQ.REPAIR @none", "[0 []]", &[]),
        more: &[
            example("nothing is wrong", EVERYWHERE, step("RMQ.REPAIR @ns", "[0 []]", &[])),
            example(
                "every other kind",
                TRACES,
                step(
                    "RMQ.REPAIR @ns",
                    "[0 [pending_without_payload ...",
                    &[
                        "HSET @ns:payloads b:queue @ns:q",
                        "RPOP @ns:q:pending",
                        "LREM @ns:q:processing -1 h",
                        "ZREM @ns:delays i a",
                        "ZREM @ns:expires l",
                        "HDEL @ns:payloads k:queue",
                        "LREM @ns:dlq -1 j",
                    ],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.NEXTDELAY",
        syntax: "delay_tasks",
        keys: &[key("delay_tasks", "@delay", Read)],
        derived: &[],
        adds_data: false,
        setup: DELAYED,
        effect: step("RMQ.NEXTDELAY @delay", "[EXPIRED 1000 a]", &[]),
        idle: step("RMQ.NEXTDELAY @none", "[NO_TASK]", &[]),
        more: &[example(
            "a wait is replied in ms",
            DELAYED,
            step("RMQ.NEXTDELAY @later", "[WAITING <number> 9000000000000 d]", &[]),
        )],
    },
];
