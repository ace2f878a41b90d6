"""A worker for one queue. Start as many as you like; Ctrl-C or SIGTERM ends one, after the message in hand."""
import json
import os
import signal
import time
import redis

PENDING, PROCESSING = "app:orders:pending", "app:orders:processing"
PAYLOADS, EXPIRES, DELAYS, DLQ_MAP, DLQ = "app:payloads", "app:expires", "app:delays", "app:dlq:data", "app:dlq"
LEASE_MS, BLOCK_MS, MAX_ATTEMPTS = 30_000, 1000, 3
url = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")  # the client waits longer than the server holds it:
pipeline = redis.from_url(url, socket_timeout=BLOCK_MS / 1000 + 5).pipeline(transaction=False)
settle = pipeline.execute_command  # goes out with what is sent next, mostly a RESERVE: one round trip for both


def send(*command):
    *settled, reply = pipeline.execute_command(*command).execute(raise_on_error=False)
    for result in settled:
        if result == 0 or isinstance(result, Exception):  # 0: the lease had run out
            print("not settled:", result, flush=True)
    if isinstance(reply, Exception):
        raise reply
    return reply


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
        send("RMQ.DELAYTICK", DELAYS, PAYLOADS, 100)  # messages whose delay is over become pending
        for id, payload, queue in send("RMQ.TIMEOUTS", EXPIRES, PAYLOADS, "*", 100, "CLAIM", LEASE_MS):
            settle("RMQ.RETRY", PAYLOADS, DELAYS, EXPIRES, queue + b":processing", id, payload, 0)  # its worker died
    for message in send("RMQ.RESERVE", PENDING, PROCESSING, PAYLOADS, EXPIRES, LEASE_MS, "BLOCK", BLOCK_MS) or []:
        process(*message)
send("PING")
