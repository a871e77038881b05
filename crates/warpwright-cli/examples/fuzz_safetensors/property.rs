//! A property of any bytes: the reader refuses them, or its header is sound.

use warpwright_cli::checkpoint::Header;

/// Whether the reader accepts the input.
pub(crate) fn check(bytes: &[u8]) -> Result<bool, String> {
    let length = bytes.len() as u64;
    let header = match Header::parse(bytes, length) {
        Err((_, defect)) => {
            // Messages are part of what must not panic.
            let _ = (defect.to_string(), defect.help());
            return Ok(false);
        }
        Ok(header) => header,
    };
    let mut end = header.data_start;
    for tensor in &header.tensors {
        let start = header.data_start + tensor.start;
        if start != end {
            return Err(format!("tensor {:?} starts at {start}, the one before ends at {end}", tensor.name));
        }
        let size = tensor.dtype.bytes(tensor.elements()).ok_or("a shape has no size")?;
        if size != tensor.bytes() {
            return Err(format!("tensor {:?} has {} bytes, its shape {size}", tensor.name, tensor.bytes()));
        }
        end += size;
    }
    if end == length { Ok(true) } else { Err(format!("the tensors end at {end}, the file at {length}")) }
}
