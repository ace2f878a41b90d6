"""A worker for two queues, by priority. Retries, backoff, dead letters, recovery of killed workers are the server's."""
import json, os, time
import redis

def handle(order, attempts):  # your work; this one takes as long and fails as often as the message asks
    time.sleep(order.get("work_ms", 0) / 1000)
    assert attempts > order.get("fails", 0), "asked to fail"

r = redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"), socket_timeout=10)  # longer than BLOCK
while True:
    taken = r.execute_command("RMQ.RESERVE", "app", 10000, "BLOCK", 2000, "FROM", "urgent", "orders")
    for id, payload, receipt, attempts, queue in taken or []:
        try: handle(json.loads(payload), attempts)
        except Exception as error: r.execute_command("RMQ.NACK", "app", id, receipt, "ERROR", repr(error))
        else: r.execute_command("RMQ.ACK", "app", id, receipt)
