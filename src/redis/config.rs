//! Registers the module's settings with the server: redis.conf, CONFIG SET and `loadmodule` arguments.

use std::ffi::{c_char, c_int, c_longlong, c_void, CString};

use redis_module::raw;

use super::api::api;
use super::Invocation;
use crate::settings::{self, Setting};

pub(super) fn register(call: &Invocation) -> Result<(), String> {
    settings::take_load_arguments(&call.load_args())?;
    for setting in settings::ALL {
        let name = CString::new(setting.name).expect("a setting's name has no NUL");
        // SAFETY: the context is that of the load; the name is copied; the setting is static, so the pointer that
        // the callbacks get stays good.
        let status = unsafe {
            api!(RedisModule_RegisterNumericConfig(
                call.ctx(),
                name.as_ptr(),
                setting.get(),
                raw::REDISMODULE_CONFIG_DEFAULT,
                setting.min,
                setting.max,
                Some(get),
                Some(set),
                None,
                (*setting as *const Setting).cast_mut().cast(),
            ))
        };
        if status != raw::REDISMODULE_OK as c_int {
            return Err(format!("setting rmq.{} was refused", setting.name));
        }
    }
    // SAFETY: the context is that of the load.
    let status = unsafe { api!(RedisModule_LoadConfigs(call.ctx())) };
    if status != raw::REDISMODULE_OK as c_int {
        return Err("a setting in the configuration file was refused".into());
    }
    Ok(())
}

unsafe extern "C" fn get(_name: *const c_char, setting: *mut c_void) -> c_longlong {
    // SAFETY: the pointer is the static setting that was registered.
    unsafe { &*setting.cast::<Setting>() }.get()
}

unsafe extern "C" fn set(
    _name: *const c_char,
    value: c_longlong,
    setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: as in `get`. The server has checked the range.
    unsafe { &*setting.cast::<Setting>() }.set(value);
    raw::REDISMODULE_OK as c_int
}
