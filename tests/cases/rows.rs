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
const IN_WORK: &[&str] = &[
    "HSET @map a pa a:queue @q b pb b:queue @q",
    "LPUSH @q:processing a b",
    "ZADD @exp 1000.5 a 2000.5 b",
];

/// One message in work: when it goes, its keys go.
const ALONE: &[&str] = &[
    "HSET @map a pa a:queue @q",
    "LPUSH @q:processing a",
    "ZADD @exp 1000.5 a",
];

/// Three that are due, one that is not, one that stands for nothing.
const DELAYED: &[&str] = &[
    "HSET @map a pa a:queue @q b pb b:queue @r c pc c:queue @q d pd d:queue @q",
    "ZADD @delay 1000 a 2000 b 2500 orphan 3000 c 9000000000000 d",
    "ZADD @later 9000000000000 d",
];

/// Two that wait, `a` the older; `b` was delivered twice before.
const PENDING: &[&str] = &[
    "HSET @map a pa a:queue @q b pb b:queue @q b:attempts 2",
    "LPUSH @q:pending a b",
];

/// Three dead letters of two queues.
const DEAD: &[&str] = &[
    "HSET @dead a pa a:queue @q b pb b:queue @r c pc c:queue @q",
    "LPUSH @dead-ids a b c",
];

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
            &["LREM @q:processing -1 a", "ZREM @exp a", "HDEL @map a a:queue"],
        ),
        idle: step("RMQ.COMPLETE @map @q:processing @exp none", "OK", &[]),
        more: &[
            example(
                "many ids share one ZREM and one HDEL",
                IN_WORK,
                step(
                    "RMQ.COMPLETE @map @q:processing @exp b none a",
                    "OK",
                    &[
                        "LREM @q:processing -1 a",
                        "LREM @q:processing -1 b",
                        "ZREM @exp b a",
                        "HDEL @map b b:queue a a:queue",
                    ],
                ),
            ),
            example(
                "the last message takes its keys with it",
                ALONE,
                step(
                    "RMQ.COMPLETE @map @q:processing @exp a",
                    "OK",
                    &["LREM @q:processing -1 a", "ZREM @exp a", "HDEL @map a a:queue"],
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
                step(
                    "RMQ.COMPLETE @map @q:processing @exp a",
                    "OK",
                    &["HDEL @map a a:queue a:attempts"],
                ),
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
            &[
                "HSET @map a new",
                "ZADD @delay <time> a",
                "ZREM @exp a",
                "LREM @q:processing -1 a",
            ],
        ),
        idle: step("RMQ.RETRY @map @delay @exp @q:processing none new 10", "NOMSG ...", &[]),
        more: &[
            example(
                "a missing queue is restored",
                &["LPUSH @q:processing a"],
                step(
                    "RMQ.RETRY @map @delay @exp @q:processing a new 0 topic",
                    "OK",
                    &[
                        "HSET @map a new a:queue @q",
                        "ZADD @delay <time> a",
                        "LREM @q:processing -1 a",
                    ],
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
        keys: &[
            key("delay_tasks", "@delay", ReadWrite),
            key("payload_map", "@map", Read),
        ],
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
                step(
                    "RMQ.DELAYTICK @delay @map 10",
                    "[[a @q]]",
                    &["LPUSH @q:pending a", "ZREM @delay a"],
                ),
            ),
            example(
                "what stands for nothing is only removed",
                &["ZADD @delay 1000 a"],
                step("RMQ.DELAYTICK @delay @map 10", "[]", &["ZREM @delay a"]),
            ),
            example(
                "a list that is there already gets the id on its left",
                &["HSET @map a pa a:queue @q", "ZADD @delay 1000 a", "LPUSH @q:pending z"],
                step(
                    "RMQ.DELAYTICK @delay @map 10",
                    "[[a @q]]",
                    &["LPUSH @q:pending a", "ZREM @delay a"],
                ),
            ),
            example(
                "a queue whose key is no list keeps its ids",
                &[
                    "HSET @map a pa a:queue @q b pb b:queue @r",
                    "ZADD @delay 1000 a 2000 b",
                    "SET @q:pending x",
                ],
                step(
                    "RMQ.DELAYTICK @delay @map 1",
                    "[[b @r]]",
                    &["LPUSH @r:pending b", "ZREM @delay b"],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.TIMEOUTS",
        syntax: "expire_monitor payload_map target_time batch [ALL] [CLAIM claim]",
        keys: &[
            key("expire_monitor", "@exp", ReadWrite),
            key("payload_map", "@map", Read),
        ],
        derived: &[key("processing", "@q:processing", Write)],
        adds_data: false,
        setup: IN_WORK,
        effect: step(
            "RMQ.TIMEOUTS @exp @map * 1",
            "[[a pa @q]]",
            &["LREM @q:processing -1 a", "ZREM @exp a"],
        ),
        idle: step("RMQ.TIMEOUTS @exp @map 1000 10", "[]", &[]),
        more: &[
            example(
                "a batch shares one ZREM",
                IN_WORK,
                step(
                    "RMQ.TIMEOUTS @exp @map 5000 10",
                    "[[a pa @q] [b pb @q]]",
                    &["LREM @q:processing -1 a", "LREM @q:processing -1 b", "ZREM @exp a b"],
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
                step(
                    "RMQ.TIMEOUTS @exp @map * 10 ALL",
                    "[[a pa @q]]",
                    &["ZREM @exp a orphan"],
                ),
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
                "LREM @q:processing -1 a",
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
                "the same id again stands once, at the head",
                &["HSET @errors a old b old", "RPUSH @error-ids b a"],
                step(
                    "RMQ.PARSEERR @errors @error-ids @q:processing @exp @map a pa topic boom 123",
                    "OK",
                    &["HSET @errors a <json>", "LREM @error-ids -1 a", "LPUSH @error-ids a"],
                ),
            ),
            example(
                "an id that stands at the head already stays there",
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
                    &[
                        "HSET @errors a <json>",
                        "LPUSH @error-ids a",
                        "RPOP @error-ids 2",
                        "HDEL @errors x y",
                    ],
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
                    &[
                        "HSET @errors a <json>",
                        "LPUSH @error-ids a",
                        "PEXPIREAT @errors <time>",
                    ],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.PUBLISH",
        syntax: "payload_map pending [URGENT] id payload [id payload ...]",
        keys: &[key("payload_map", "@map", Write), key("pending", "@q:pending", Write)],
        derived: &[],
        adds_data: true,
        setup: IN_WORK,
        effect: step(
            "RMQ.PUBLISH @map @q:pending n pn",
            "n",
            &["HSET @map n pn n:queue @q", "LPUSH @q:pending n"],
        ),
        idle: step("RMQ.PUBLISH @map @q:pending a pa", "nil", &[]),
        more: &[
            example(
                "several messages share one HSET and one push",
                IN_WORK,
                step(
                    "RMQ.PUBLISH @map @q:pending URGENT n pn a pa o po",
                    "[n nil o]",
                    &["HSET @map n pn n:queue @q o po o:queue @q", "RPUSH @q:pending n o"],
                ),
            ),
            example(
                "what is left of an earlier message's deliveries goes",
                &["HSET @map n:attempts 4"],
                step(
                    "RMQ.PUBLISH @map @q:pending n pn",
                    "n",
                    &[
                        "HSET @map n pn n:queue @q",
                        "HDEL @map n:attempts",
                        "LPUSH @q:pending n",
                    ],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.SCHEDULE",
        syntax: "payload_map delay_tasks id payload queue delay_ms [AT]",
        keys: &[key("payload_map", "@map", Write), key("delay_tasks", "@delay", Write)],
        derived: &[key("pending", "@q:pending", Write)],
        adds_data: true,
        setup: IN_WORK,
        effect: step(
            "RMQ.SCHEDULE @map @delay n pn @q 60000",
            "n",
            &["HSET @map n pn n:queue @q", "ZADD @delay <time> n"],
        ),
        idle: step("RMQ.SCHEDULE @map @delay a pa @q 60000", "nil", &[]),
        more: &[example(
            "a Unix time is taken as it is",
            &[],
            step(
                "RMQ.SCHEDULE @map @delay n pn @q 1000 AT",
                "n",
                &["HSET @map n pn n:queue @q", "ZADD @delay 1000 n"],
            ),
        )],
    },
    Row {
        name: "RMQ.RESERVE",
        syntax: "pending processing payload_map expire_monitor lease_ms [COUNT count] [BLOCK block]",
        keys: &[
            key("pending", "@q:pending", ReadWrite),
            key("processing", "@q:processing", Write),
            key("payload_map", "@map", ReadWrite),
            key("expire_monitor", "@exp", Write),
        ],
        derived: &[],
        adds_data: false,
        setup: PENDING,
        effect: step(
            "RMQ.RESERVE @q:pending @q:processing @map @exp 60000",
            "[[a pa <time> 1]]",
            &[
                "LMOVE @q:pending @q:processing RIGHT LEFT",
                "HSET @map a:attempts 1",
                "ZADD @exp <time> a",
            ],
        ),
        idle: step("RMQ.RESERVE @none:pending @q:processing @map @exp 60000", "nil", &[]),
        more: &[
            example(
                "many share one command per key",
                PENDING,
                step(
                    "RMQ.RESERVE @q:pending @q:processing @map @exp 60000 COUNT 5 BLOCK 0",
                    "[[a pa <time> 1] [b pb <time> 3]]",
                    &[
                        "RPOP @q:pending 2",
                        "LPUSH @q:processing a b",
                        "HSET @map a:attempts 1 b:attempts 3",
                        "ZADD @exp <time> a <time> b",
                    ],
                ),
            ),
            example(
                "ids without payload are dropped on the way",
                &["HSET @map a pa a:queue @q ghost:queue @q", "RPUSH @q:pending a ghost"],
                step(
                    "RMQ.RESERVE @q:pending @q:processing @map @exp 60000",
                    "[[a pa <time> 1]]",
                    &[
                        "RPOP @q:pending 2",
                        "LPUSH @q:processing a",
                        "HSET @map a:attempts 1",
                        "HDEL @map ghost:queue",
                        "ZADD @exp <time> a",
                    ],
                ),
            ),
            example(
                "nothing but ids without payload leaves nothing",
                &["RPUSH @q:pending ghost"],
                step(
                    "RMQ.RESERVE @q:pending @q:processing @map @exp 60000",
                    "nil",
                    &["RPOP @q:pending 1"],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.ACK",
        syntax: "payload_map processing expire_monitor id lease [id lease ...]",
        keys: &[
            key("payload_map", "@map", Write),
            key("processing", "@q:processing", Write),
            key("expire_monitor", "@exp", ReadWrite),
        ],
        derived: &[],
        adds_data: false,
        setup: IN_WORK,
        effect: step(
            "RMQ.ACK @map @q:processing @exp a 1000.5",
            "1",
            &["LREM @q:processing -1 a", "ZREM @exp a", "HDEL @map a a:queue"],
        ),
        idle: step("RMQ.ACK @map @q:processing @exp a 1000 none 1", "0", &[]),
        more: &[example(
            "many share one ZREM and one HDEL",
            IN_WORK,
            step(
                "RMQ.ACK @map @q:processing @exp b 2000.5 a 1000.5 none 5",
                "2",
                &[
                    "LREM @q:processing -1 a",
                    "LREM @q:processing -1 b",
                    "ZREM @exp b a",
                    "HDEL @map b b:queue a a:queue",
                ],
            ),
        )],
    },
    Row {
        name: "RMQ.NACK",
        syntax: "payload_map delay_tasks expire_monitor processing id lease delay_ms [PAYLOAD payload]",
        keys: &[
            key("payload_map", "@map", Write),
            key("delay_tasks", "@delay", Write),
            key("expire_monitor", "@exp", ReadWrite),
            key("processing", "@q:processing", Write),
        ],
        derived: &[],
        adds_data: false,
        setup: IN_WORK,
        effect: step(
            "RMQ.NACK @map @delay @exp @q:processing a 1000.5 5000",
            "1",
            &["ZADD @delay <time> a", "ZREM @exp a", "LREM @q:processing -1 a"],
        ),
        idle: step("RMQ.NACK @map @delay @exp @q:processing a 1000 5000", "0", &[]),
        more: &[example(
            "a new payload is stored",
            IN_WORK,
            step(
                "RMQ.NACK @map @delay @exp @q:processing a 1000.5 0 PAYLOAD new",
                "1",
                &[
                    "HSET @map a new",
                    "ZADD @delay <time> a",
                    "ZREM @exp a",
                    "LREM @q:processing -1 a",
                ],
            ),
        )],
    },
    Row {
        name: "RMQ.EXTEND",
        syntax: "expire_monitor id lease lease_ms",
        keys: &[key("expire_monitor", "@exp", ReadWrite)],
        derived: &[],
        adds_data: false,
        setup: IN_WORK,
        effect: step("RMQ.EXTEND @exp a 1000.5 60000", "<time>", &["ZADD @exp <time> a"]),
        idle: step("RMQ.EXTEND @exp a 1000 60000", "nil", &[]),
        more: &[],
    },
    Row {
        name: "RMQ.DEADLETTER",
        syntax: "dlq_map dlq expire_monitor payload_map processing id payload [topic] [LEASE lease]",
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
                "LREM @q:processing -1 a",
                "ZREM @exp a",
                "HDEL @map a a:queue",
            ],
        ),
        idle: step(
            "RMQ.DEADLETTER @dead @dead-ids @exp @map @q:processing none last",
            "NOMSG ...",
            &[],
        ),
        more: &[
            example(
                "an id stands once among the dead letters",
                &[
                    "HSET @map a pa a:queue @q",
                    "HSET @dead a old a:queue @old z pz",
                    "RPUSH @dead-ids z a",
                ],
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
                "an id that stands first among the dead letters stays there",
                &["HSET @map a pa a:queue @q", "HSET @dead a old", "RPUSH @dead-ids a"],
                step(
                    "RMQ.DEADLETTER @dead @dead-ids @exp @map @q:processing a last",
                    "OK",
                    &["HSET @dead a last a:queue @q", "HDEL @map a a:queue"],
                ),
            ),
            example(
                "whoever lost the lease changes nothing",
                IN_WORK,
                step(
                    "RMQ.DEADLETTER @dead @dead-ids @exp @map @q:processing a last LEASE 1",
                    "0",
                    &[],
                ),
            ),
        ],
    },
    Row {
        name: "RMQ.REDRIVE",
        syntax: "dlq dlq_map payload_map batch",
        keys: &[
            key("dlq", "@dead-ids", ReadWrite),
            key("dlq_map", "@dead", ReadWrite),
            key("payload_map", "@map", Write),
        ],
        derived: &[key("pending", "@q:pending", Write), key("pending", "@r:pending", Write)],
        adds_data: false,
        setup: DEAD,
        effect: step(
            "RMQ.REDRIVE @dead-ids @dead @map 10",
            "[[a @q] [b @r] [c @q]]",
            &[
                "RPOP @dead-ids 3",
                "LPUSH @q:pending a c",
                "LPUSH @r:pending b",
                "HSET @map a pa a:queue @q b pb b:queue @r c pc c:queue @q",
                "HDEL @dead a a:queue b b:queue c c:queue",
            ],
        ),
        idle: step("RMQ.REDRIVE @no-ids @dead @map 10", "[]", &[]),
        more: &[
            example(
                "the attempts start anew",
                &[
                    "HSET @dead a pa a:queue @q",
                    "RPUSH @dead-ids a",
                    "HSET @map a:attempts 7",
                ],
                step(
                    "RMQ.REDRIVE @dead-ids @dead @map 10",
                    "[[a @q]]",
                    &[
                        "RPOP @dead-ids 1",
                        "LPUSH @q:pending a",
                        "HSET @map a pa a:queue @q",
                        "HDEL @dead a a:queue",
                        "HDEL @map a:attempts",
                    ],
                ),
            ),
            example(
                "one that must stay does not hold up the others",
                &[
                    "HSET @dead a pa a:queue @q b pb b:queue @r",
                    "RPUSH @dead-ids b a",
                    "SET @q:pending x",
                ],
                step(
                    "RMQ.REDRIVE @dead-ids @dead @map 10",
                    "[[b @r]]",
                    &[
                        "LREM @dead-ids -1 b",
                        "LPUSH @r:pending b",
                        "HSET @map b pb b:queue @r",
                        "HDEL @dead b b:queue",
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
            "a wait is told in ms",
            DELAYED,
            step("RMQ.NEXTDELAY @later", "[WAITING <number> 9000000000000 d]", &[]),
        )],
    },
];
