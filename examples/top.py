"""A live view of a namespace, one RMQ.STATS per second, also on a replica. Ctrl-C leaves.

python top.py [--once] [--interval seconds] [namespace]     the server: REDIS_URL, default redis://127.0.0.1:6379
"""
import argparse, os, shutil, signal, sys, time
import redis

COLUMNS = "{:<20.20}{:>9}{:>9}{:>8}{:>10}{:>10}{:>12}"
RED, DIM, BOLD, PLAIN = "\x1b[31m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


def number(n):  # at most 7 characters
    if n is None:  # the list has another type
        return "-"
    for unit in ("", "k", "M", "G"):
        if n < 10_000 or unit == "G":
            return f"{n:.0f}{unit}" if n >= 100 or n == int(n) else f"{n:.1f}{unit}"
        n /= 1000


def age(ms):
    fits = ((ms / size, unit) for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m")) if ms >= size)
    return "-" if ms is None else "{:.1f} {}".format(*next(fits, (ms / 1000, "s")))


def printable(text):
    return "".join(c if c.isprintable() else "?" for c in text)


class View:
    def __init__(self, url, namespace):
        self.redis = redis.from_url(url, protocol=3, decode_responses=True, encoding_errors="replace", socket_timeout=10)
        self.namespace, self.before = namespace, None

    def look(self):
        """The lines of one frame, each with its colour."""
        stats, now = self.redis.execute_command("RMQ.STATS", self.namespace), time.monotonic()
        queues = stats["queues"]
        then, before = self.before or (now, {})
        self.before = now, queues

        def rate(queue, field):  # a counter that fell was reset
            if queue not in before:
                return "-"
            return number(max(0, queues[queue][field] - before[queue][field]) / (now - then)) + "/s"

        next_due = "" if stats["next_due_in_ms"] is None else f", next in {age(stats['next_due_in_ms'])}"
        yield f"{printable(self.namespace):<60.60}{time.strftime('%H:%M:%S'):>18}", BOLD
        yield f"delayed {number(stats['delayed'])} ({number(stats['due'])} due{next_due})", RED if stats["due"] else PLAIN
        yield f"leased {number(stats['leased'])} ({number(stats['overdue'])} overdue)", RED if stats["overdue"] else PLAIN
        yield f"dead {number(stats['dead'])}", RED if stats["dead"] else PLAIN
        yield "", PLAIN
        yield COLUMNS.format("queue", "waiting", "in work", "oldest", "in", "out", "workers"), BOLD
        for name, q in sorted(queues.items(), key=lambda item: (-(item[1]["pending"] or 0), item[0])):
            asked = "never" if q["idle_ms"] is None else age(q["idle_ms"]) + " ago"  # when a worker last asked for it
            workers = "paused" if q["paused"] else f"{q['waiting_clients']} wait" if q["waiting_clients"] else asked
            yield COLUMNS.format(printable(name), number(q["pending"]), number(q["processing"]), age(q["next_age_ms"]),
                                 rate(name, "published"), rate(name, "acked"), workers), RED if q["paused"] else PLAIN


def draw(lines, size):
    """One frame over the last one; what does not fit is cut, and how many lines that are is said."""
    lines = list(lines)
    if len(lines) > size.lines - 1:
        hidden = len(lines) - (size.lines - 2)
        lines[size.lines - 2:] = [(f"… {hidden} more", DIM)]
    shown = [f"{colour}{text[:size.columns - 1]}{PLAIN}\x1b[K\r\n" for text, colour in lines]
    sys.stdout.write("\x1b[H" + "".join(shown) + "\x1b[J")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description="A live view of the queues of a namespace.")
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument("--interval", type=float, default=1, metavar="seconds")
    parser.add_argument("namespace", nargs="?", default="app")
    args = parser.parse_args()
    view = View(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"), args.namespace)
    if args.once:
        list(view.look())
        time.sleep(args.interval)
        return print("\n".join(text.rstrip() for text, _ in view.look()))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    sys.stdout.write("\x1b[?1049h\x1b[?25l")  # a screen of its own, no cursor
    try:
        while True:
            try:
                lines = list(view.look())
            except redis.RedisError as error:  # a failover, a restart: it goes on when the server is there again
                lines = [(printable(f"{time.strftime('%H:%M:%S')} {error}"), RED)]
            draw(lines, shutil.get_terminal_size())
            time.sleep(args.interval)
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")


main()
