// A worker for two queues, by priority. Retries, backoff, dead letters, recovery of killed workers are the server's.
const { createClient } = require("redis"); // ioredis: r.call(...words) instead of r.sendCommand(words)
async function handle(payload, attempts) { // your work; this one takes as long and fails as often as the message asks
  const order = JSON.parse(payload);
  await new Promise((done) => setTimeout(done, order.work_ms ?? 0));
  if (attempts <= (order.fails ?? 0)) throw new Error("asked to fail");
}
(async () => {
  const r = await createClient({ url: process.env.REDIS_URL }).on("error", console.error).connect();
  const call = (command, ...words) => r.sendCommand([command, "app", ...words]);
  for (;;)
    for (const [id, payload, receipt, n] of await call("RMQ.RESERVE", "10000", "BLOCK", "2000", "FROM", "urgent", "orders") ?? [])
      await handle(payload, n).then(() => call("RMQ.ACK", id, receipt),
                                    (error) => call("RMQ.NACK", id, receipt, "ERROR", String(error)));
})();
