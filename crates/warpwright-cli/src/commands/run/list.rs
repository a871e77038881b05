//! Arguments from a JSON file, for lists that are too long for a command line.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::error::Error;
use crate::paths::Shown;

/// The most that is read of a list.
const MAX_LIST: u64 = 1 << 24;

/// The texts of arguments and of arrays in a file.
///
/// # Errors
/// The file cannot be read, or is no such list.
pub(super) fn read(path: &Path) -> Result<(Vec<String>, Vec<String>), Error> {
    let mut text = String::new();
    let file = File::open(path).map_err(Error::file(path, "open"))?;
    file.take(MAX_LIST + 1).read_to_string(&mut text).map_err(Error::file(path, "read"))?;
    parse(&text).map_err(|why| {
        let message = format!("--args-json {}: {why}", Shown(path));
        Error::usage(message, r#"["u32:5", ..], or {"args": ["u32:5", ..], "arrays": {"x": "x.npy", ..}}"#)
    })
}

fn parse(text: &str) -> Result<(Vec<String>, Vec<String>), String> {
    if text.len() as u64 > MAX_LIST {
        return Err(format!("has more than {MAX_LIST} bytes"));
    }
    let value: Value = serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))?;
    let object = match value {
        Value::Array(_) => return Ok((texts(&value)?, Vec::new())),
        Value::Object(object) => object,
        _ => return Err("is neither a list nor an object".to_owned()),
    };
    let (mut args, mut arrays) = (Vec::new(), Vec::new());
    for (key, value) in &object {
        match (key.as_str(), value) {
            ("args", list) => args = texts(list)?,
            ("arrays", Value::Object(named)) => {
                for (name, form) in named {
                    let form = form.as_str().ok_or_else(|| format!("the array `{name}` is no text"))?;
                    arrays.push(format!("{name}={form}"));
                }
            }
            ("arrays", _) => return Err("`arrays` is no object".to_owned()),
            _ => return Err(format!("has the key `{key}`")),
        }
    }
    Ok((args, arrays))
}

fn texts(list: &Value) -> Result<Vec<String>, String> {
    let list = list.as_array().ok_or("`args` is no list")?;
    let text = |(at, value): (usize, &Value)| {
        value.as_str().map(str::to_owned).ok_or_else(|| format!("argument {at} is no text"))
    };
    list.iter().enumerate().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_objects_are_read() {
        let of = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
        assert_eq!(parse(r#"["u32:5", "null"]"#), Ok((of(&["u32:5", "null"]), vec![])));
        let text = r#"{"arrays": {"x": "in:x.npy"}, "args": ["ptr:x"]}"#;
        assert_eq!(parse(text), Ok((of(&["ptr:x"]), of(&["x=in:x.npy"]))));
        assert_eq!(parse("{}"), Ok((vec![], vec![])));
        for bad in [
            "",
            "5",
            "[5]",
            r#"{"args": 5}"#,
            r#"{"arrays": ["x"]}"#,
            r#"{"arrays": {"x": 5}}"#,
            r#"{"arg": []}"#,
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
