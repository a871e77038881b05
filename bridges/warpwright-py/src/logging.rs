//! `WARPWRIGHT_LOG`: events of the libraries on the process's standard error.

use std::ffi::{CString, OsStr};

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use tracing_subscriber::EnvFilter;

const VARIABLE: &str = "WARPWRIGHT_LOG";

/// Prints the events that the environment variable asks for, from now on; none without it. A value that is no filter is a warning.
pub(crate) fn read_environment(py: Python<'_>) -> PyResult<()> {
    let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(()) };
    match filter(&value) {
        Ok(filter) => {
            // A second interpreter in the process finds the subscriber of the first.
            let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
            Ok(())
        }
        Err(why) => {
            let text = format!(
                "{VARIABLE}={}: {why}; nothing is logged. Write TARGET=LEVEL, several with commas, as in {VARIABLE}=warpwright=debug; \
                 levels are error, warn, info, debug, trace, off",
                value.to_string_lossy()
            );
            // The value of a variable has no NUL in it.
            let text = CString::new(text).unwrap_or_default();
            PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)
        }
    }
}

fn filter(value: &OsStr) -> Result<EnvFilter, String> {
    let text = value.to_str().ok_or("it is not UTF-8")?;
    EnvFilter::builder().parse(text).map_err(|error| error.to_string())
}
