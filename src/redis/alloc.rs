//! The allocator: the server's own, so that INFO memory and maxmemory see what the module uses. Unit tests run
//! without a server and keep the system's.

#[cfg(not(test))]
#[global_allocator]
static ALLOC: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;
