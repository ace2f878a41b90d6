"""A worker whose work may take longer than its lease: a thread extends the lease meanwhile. If the process dies, so does
the thread, and the message is delivered again a lease later. EXTEND leaves the receipt as it is: it cannot spoil an ACK."""
import json, os, threading, time
import redis

LEASE_MS = 2000

def heartbeat(id, receipt, done):
    while not done.wait(LEASE_MS / 3000):  # three times per lease
        try:
            if r.execute_command("RMQ.EXTEND", "app", LEASE_MS, id, receipt) == [0]:
                return  # somebody else has the message by now: our ACK will reply 0
        except redis.RedisError:
            pass  # the server restarts, perhaps: the next one may be in time

def handle(order, attempts):  # your work; this one takes as long and fails as often as the message asks
    time.sleep(order.get("work_ms", 0) / 1000)
    assert attempts > order.get("fails", 0), "asked to fail"

r = redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"), socket_timeout=10)  # longer than BLOCK
while True:
    taken = r.execute_command("RMQ.RESERVE", "app", LEASE_MS, "BLOCK", 2000, "FROM", "urgent", "orders")
    for id, payload, receipt, attempts, queue in taken or []:
        done = threading.Event()
        threading.Thread(target=heartbeat, args=(id, receipt, done), daemon=True).start()
        try:
            handle(json.loads(payload), attempts)
        except Exception as error:
            r.execute_command("RMQ.NACK", "app", id, receipt, "ERROR", repr(error))
        else:
            r.execute_command("RMQ.ACK", "app", id, receipt)
        finally:
            done.set()
