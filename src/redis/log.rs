//! Lines in the server's log. The text is data, never a format, and is made printable first.

use std::ffi::CString;

use super::api::api;

/// What goes between quotes in a log line or an error: printable ASCII, the rest escaped, cut at 128 characters.
pub fn printable(bytes: &[u8]) -> String {
    const MAX: usize = 128;
    let mut text: String =
        bytes.iter().take(MAX).flat_map(|byte| std::ascii::escape_default(*byte)).map(char::from).collect();
    if bytes.len() > MAX {
        text.push_str("...");
    }
    text
}

pub fn warning(text: &str) {
    let text = CString::new(text.replace('\0', "\\0")).unwrap_or_default();
    let no_context = std::ptr::null_mut();
    // SAFETY: the function takes a null context; level, format and text are NUL-terminated, and the one `%s` has its one
    // argument.
    unsafe { api!(RedisModule_Log(no_context, c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr())) }
}
