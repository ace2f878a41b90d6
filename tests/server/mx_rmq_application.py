"""An application of mx-rmq 1.6.2, run by examples.rs: once on the Lua scripts, once on examples/mx_rmq_adapter.py.
Usage: mx_rmq_application.py PORT lua|adapter. Prints what was delivered and what is left, as JSON."""
import asyncio, collections, json, sys, time

port, mode = int(sys.argv[1]), sys.argv[2]
if mode == "adapter":
    import mx_rmq_adapter
    mx_rmq_adapter.install()
from loguru import logger
from mx_rmq import MQConfig, RedisMessageQueue
from mx_rmq.message import MessagePriority
import redis.asyncio

logger.remove()
logger.add(sys.stderr, level="ERROR")
# model_construct: shorter times than MQConfig allows. With the scripts nothing wakes the scheduler after a retry.
config = MQConfig.model_construct(
    redis_port=port, queue_prefix="mx-rmq", processing_timeout=2, expired_check_interval=1, retry_delays=[1, 1, 1],
    delay_fallback_interval=1 if mode == "lua" else 300)
deliveries = collections.Counter()


async def handle(payload):
    name = payload["name"]
    deliveries[name] += 1
    if deliveries[name] <= payload.get("fails", 0):
        raise RuntimeError("asked to fail")
    if name == "hanging" and deliveries[name] == 1:
        await asyncio.sleep(5)


async def main():
    queue = RedisMessageQueue(config)
    queue.register_handler("orders", handle)
    await queue.initialize()
    r = redis.asyncio.Redis(port=port, decode_responses=True)

    async def produce(name, fails=0, **how):
        await queue.produce("orders", {"name": name, "fails": fails}, message_id=name, **how)

    for n in range(30):
        await produce(f"plain-{n}")
    for n in range(5):
        await produce(f"high-{n}", priority=MessagePriority.HIGH)
        await produce(f"delayed-{n}", delay=1 + n % 2)
    await produce("flaky", fails=2)
    await produce("hopeless", fails=99)
    await produce("hanging")
    good = list(await r.hkeys("mx-rmq:payloads"))
    for broken in ["broken-0", "broken-1"]:
        await r.hset("mx-rmq:payloads", mapping={broken: '{"id": "', f"{broken}:queue": "mx-rmq:orders"})
        await r.lpush("mx-rmq:orders:pending", broken)

    await queue.start_background()
    await asyncio.sleep(3)
    late = time.monotonic()
    await produce("late", delay=1)  # the scheduler has nothing to wait for, or waits for something later
    good.append("late")
    while deliveries["late"] == 0 and time.monotonic() < late + 60:
        await asyncio.sleep(0.02)
    late = time.monotonic() - late
    for _ in range(600):
        if not any(await r.hmget("mx-rmq:payloads", good)) and deliveries["hanging"] > 1:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(4)  # the first delivery of 'hanging' ends, and completes a message that is gone
    result = dict(
        deliveries=deliveries, late=late, dead=await r.lrange("mx-rmq:dlq", 0, -1),
        errors=sorted(await r.lrange("mx-rmq:errors", 0, -1)), records=await r.hgetall("mx-rmq:errors:data"),
        payloads=sorted(await r.hkeys("mx-rmq:payloads")), keys=sorted(await r.keys("*")))
    print(json.dumps(result), flush=True)
    await queue.stop()


asyncio.run(main())
