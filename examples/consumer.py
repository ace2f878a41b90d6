"""A worker for one queue. Start as many as you like; Ctrl-C or SIGTERM ends one, after the message in hand."""
import contextlib
import json
import os
import signal
import time
import redis

QUEUE = os.environ.get("QUEUE", "app:orders")
PENDING, PROCESSING = f"{QUEUE}:pending", f"{QUEUE}:processing"
PAYLOADS, EXPIRES, DELAYS, DLQ_MAP, DLQ = "app:payloads", "app:expires", "app:delays", "app:dlq:data", "app:dlq"
LEASE_MS, BLOCK_MS, MAX_ATTEMPTS = 30_000, 1000, 3

# The client must have more patience than the server, which holds it for BLOCK_MS.
client = redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"), socket_timeout=BLOCK_MS / 1000 + 5)
call, pipeline = client.execute_command, client.pipeline(transaction=False)
settle = pipeline.execute_command  # goes out with the next RESERVE: one round trip for both


def handle(order, attempts):
    """Your work: an exception is a failure. This one takes as long and fails as often as the message asks."""
    time.sleep(order.get("work_ms", 0) / 1000)
    if attempts <= order.get("fails", 0):
        raise RuntimeError("asked to fail")


def process(id, payload, lease, attempts):
    try:
        if attempts > MAX_ATTEMPTS:  # a message that kills its workers never comes to the except below
            raise RuntimeError("too many attempts")
        handle(json.loads(payload), attempts)
        print("done", id.decode(), flush=True)
        settle("RMQ.ACK", PAYLOADS, PROCESSING, EXPIRES, id, lease)
    except Exception as error:
        print(f"failed {id.decode()}, attempt {attempts}: {error}", flush=True)
        if attempts >= MAX_ATTEMPTS:
            settle("RMQ.DEADLETTER", DLQ_MAP, DLQ, EXPIRES, PAYLOADS, PROCESSING, id, payload, "LEASE", lease)
        else:
            settle("RMQ.NACK", PAYLOADS, DELAYS, EXPIRES, PROCESSING, id, lease, 200 * 2**attempts)


stop, next_tick = [], 0.0
signal.signal(signal.SIGINT, lambda *_: stop.append("now"))
signal.signal(signal.SIGTERM, lambda *_: stop.append("now"))
while not stop:
    if (now := time.monotonic()) >= next_tick:
        next_tick = now + 1
        # Messages whose delay is over become pending; those of workers that died are tried again.
        call("RMQ.DELAYTICK", DELAYS, PAYLOADS, 100)
        for id, payload, queue in call("RMQ.TIMEOUTS", EXPIRES, PAYLOADS, "*", 100, "CLAIM", LEASE_MS):
            with contextlib.suppress(redis.ResponseError):  # NOMSG: somebody settled it meanwhile
                call("RMQ.RETRY", PAYLOADS, DELAYS, EXPIRES, queue + b":processing", id, payload, 0)
    pipeline.execute_command("RMQ.RESERVE", PENDING, PROCESSING, PAYLOADS, EXPIRES, LEASE_MS, "BLOCK", BLOCK_MS)
    *settled, taken = pipeline.execute()
    if 0 in settled:
        print("too late: the lease had run out", flush=True)
    for message in taken or []:
        process(*message)
pipeline.execute()
