//! `WARPWRIGHT_LOG`: events of the libraries on standard error.

use std::ffi::OsStr;
use std::io;

use tracing_subscriber::EnvFilter;

use crate::error::Error;

const VARIABLE: &str = "WARPWRIGHT_LOG";

/// Prints the events that the environment variable asks for, from now on; none without it.
///
/// # Errors
/// [`Error::Usage`] if its value is no filter.
pub fn start() -> Result<(), Error> {
    let Some(filter) = filter(std::env::var_os(VARIABLE).as_deref())? else { return Ok(()) };
    // Whoever calls the command as a library may have a subscriber of its own, which stays.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).try_init();
    Ok(())
}

fn filter(value: Option<&OsStr>) -> Result<Option<EnvFilter>, Error> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let wrong = |why: &str| {
        Error::usage(
            format!("{VARIABLE}={}: {why}", value.to_string_lossy()),
            format!(
                "write TARGET=LEVEL, several with commas, as in {VARIABLE}=warpwright=debug or \
                 {VARIABLE}=warpwright::launch=debug,warpwright::compile=debug; levels are error, warn, info, debug, trace, off"
            ),
        )
    };
    let text = value.to_str().ok_or_else(|| wrong("it is not UTF-8"))?;
    EnvFilter::builder().parse(text).map(Some).map_err(|error| wrong(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_for_by_an_empty_value() {
        assert!(filter(None).expect("off").is_none());
        assert!(filter(Some(OsStr::new(""))).expect("off").is_none());
        let filter = filter(Some(OsStr::new("warpwright=debug"))).expect("a filter").expect("on");
        assert_eq!(filter.to_string(), "warpwright=debug");
    }
}
