// BullMQ as its package runs it: adds jobs, then works them off, ten at a time. Waits for a line before each step.
const { Queue, Worker } = require('bullmq');

const [port, jobs] = process.argv.slice(2).map(Number);
const connection = { host: '127.0.0.1', port, maxRetriesPerRequest: null };
const AT_ONCE = 10;
const reached = name => new Promise(go => { process.stdin.once('data', go); console.log(name); });

async function main() {
    const queue = new Queue('orders', { connection, defaultJobOptions: { removeOnComplete: true } });
    await queue.waitUntilReady();
    await reached('ready');
    let left = jobs;
    const add = async () => { while (left-- > 0) await queue.add('job', 'x'.repeat(178)); };
    await Promise.all(Array.from({ length: AT_ONCE }, add));
    await reached('added');
    const worker = new Worker('orders', async () => {}, { connection, concurrency: AT_ONCE });
    await new Promise(end => { let done = 0; worker.on('completed', () => { if (++done === jobs) end(); }); });
    await reached('done');
    process.exit(0);
}
main();
