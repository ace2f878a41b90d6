"""Runs mx-rmq 1.6.2 on RMQ's commands instead of its Lua scripts, over the same keys.

    import mx_rmq_adapter
    mx_rmq_adapter.install()        # before the first MessageQueue is initialized; nothing else changes

Then the namespace of RMQ.RESERVE and its like is mx-rmq's queue_prefix. No EVAL is sent, so ACLs may forbid it.
"""
import time
from redis.exceptions import ResponseError
from mx_rmq.storage import LuaScriptManager

CLAIM_MS = 60_000  # an overdue message that is not settled in this time is reported again


def _names(payloads, queue=""):
    """The namespace and the short name of a queue, from the full names of keys."""
    prefix = payloads.removesuffix("payloads")
    return prefix.removesuffix(":"), queue.removeprefix(prefix)


def _scripts(redis):
    """mx-rmq's nine script objects: each is called with keys and args, as a script is."""

    def twin(command):  # the same keys and arguments as the script
        async def run(keys, args, client=None):
            return await redis.execute_command(command, *keys, *args)
        return run

    async def produce_normal(keys, args, client=None):
        (payloads, _, expires), (id, payload, queue, expire_time, urgent) = keys, args
        namespace, queue = _names(payloads, queue)
        words = ["URGENT"] if str(urgent) == "1" else []
        async with redis.pipeline(transaction=True) as both:
            both.execute_command("RMQ.PUBLISH", namespace, *words, "TO", queue, id, payload)
            both.zadd(expires, {id: expire_time}, nx=True)  # for a consumer that dies after its BLMOVE
            await both.execute()

    async def produce_delay(keys, args, client=None):
        (payloads, _, channel), (id, payload, queue, seconds) = keys, args
        namespace, queue = _names(payloads, queue)
        ms = int(float(seconds) * 1000)
        await redis.execute_command("RMQ.PUBLISH", namespace, "DELAY", ms, "TO", queue, id, payload)
        await redis.publish(channel, int(time.time() * 1000) + ms)  # wakes mx-rmq's scheduler

    def settle(command, wake=False):
        async def run(keys, args, client=None):
            try:
                await redis.execute_command(command, *keys, *args)
            except ResponseError as error:
                if not str(error).startswith("NOMSG"):  # settled already: nothing to do
                    raise
            if wake:
                await redis.publish(keys[0].removesuffix("payloads") + "delay:wake", int(time.time() * 1000))
        return run

    async def handle_timeout(keys, args, client=None):  # the server's clock; what is reported stays in processing
        return await redis.execute_command("RMQ.TIMEOUTS", *keys, "*", args[1], "CLAIM", CLAIM_MS)

    async def handle_parse_error(keys, args, client=None):  # the module finds out about HEXPIRE by itself
        await redis.execute_command("RMQ.PARSEERR", *keys, *args[:7])

    return dict(
        produce_normal=produce_normal, produce_delay=produce_delay,
        process_delay=twin("RMQ.DELAYTICK"), get_next_delay_task=twin("RMQ.NEXTDELAY"),
        complete_message=twin("RMQ.COMPLETE"), handle_timeout=handle_timeout,
        retry_message=settle("RMQ.RETRY", wake=True), move_to_dlq=settle("RMQ.DEADLETTER"),
        handle_parse_error=handle_parse_error,
    )


def install():
    async def load_scripts(self):
        return _scripts(self.redis)
    LuaScriptManager.load_scripts = load_scripts
