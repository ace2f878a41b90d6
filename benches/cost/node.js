// Jobs in one Node process, ten at a time: with BullMQ as its package does it, with RMQ as docs/guide.md does it, both over
// ioredis, and the server makes the ids. Waits for a line before each step.
const Redis = require('ioredis');
const { Queue, Worker } = require('bullmq');

const [system, ...numbers] = process.argv.slice(2);
const [port, jobs] = numbers.map(Number);
const connection = { host: '127.0.0.1', port, maxRetriesPerRequest: null };
const AT_ONCE = 10;
const handle = async () => {};

const systems = {
    async bullmq() {
        const queue = new Queue('orders', { connection, defaultJobOptions: { removeOnComplete: true } });
        await queue.waitUntilReady();
        return {
            add: () => queue.add('job', 'x'.repeat(178)), // In quotes, as JSON, 180 bytes.
            work: () => new Promise(end => {
                let done = 0;
                const worker = new Worker('orders', handle, { connection, concurrency: AT_ONCE });
                worker.on('completed', () => { if (++done === jobs) end(); });
            }),
        };
    },
    async rmq() {
        // One connection that waits in RESERVE, one for all the rest.
        const [waits, rest] = [new Redis(connection), new Redis(connection)];
        await Promise.all([waits.ping(), rest.ping()]);
        let done = 0, running = 0, free = () => {};
        const settle = async (id, payload, receipt) => {
            await handle(payload);
            const settled = await rest.call('RMQ.ACK', 'app', id, receipt);
            done += settled;
            running--;
            free();
        };
        return {
            add: () => rest.call('RMQ.PUBLISH', 'app', 'TO', 'orders', '*', 'x'.repeat(180)),
            async work() {
                while (done < jobs) {
                    const places = Math.min(AT_ONCE, jobs - done) - running;
                    if (places === 0) {
                        await new Promise(go => { free = go; });
                        continue;
                    }
                    const taken = await waits.call(
                        'RMQ.RESERVE', 'app', 30000, 'COUNT', places, 'BLOCK', 2000, 'FROM', 'orders') ?? [];
                    running += taken.length;
                    taken.forEach(message => settle(...message));
                }
            },
        };
    },
};

const reached = name => new Promise(go => { process.stdin.once('data', go); console.log(name); });

async function main() {
    const { add, work } = await systems[system]();
    await reached('ready');
    let left = jobs;
    const addSome = async () => { while (left-- > 0) await add(); };
    await Promise.all(Array.from({ length: AT_ONCE }, addSome));
    await reached('added');
    await work();
    await reached('done');
    process.exit(0);
}
main();
