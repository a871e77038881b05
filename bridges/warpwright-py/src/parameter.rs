//! The values of kernel parameters that are no arrays.

use pyo3::exceptions::PyOverflowError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat};
use warpwright::ptx::{ArgValue, Param, ScalarType, TypeClass};

use crate::error::{Class, Problem};

/// The value of a parameter that is no array: a number that its type can hold, or bytes.
pub(crate) fn scalar(object: &Bound<'_, PyAny>, param: &Param) -> PyResult<ArgValue> {
    use ScalarType::{F16, F32, F64};
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(ArgValue::Bytes(bytes.as_bytes().to_vec()));
    }
    if param.array.is_some() {
        return Err(kind(object, param, "bytes"));
    }
    let bits = param.ty.bits();
    let is_float = object.is_instance_of::<PyFloat>();
    Ok(match param.ty {
        F32 => ArgValue::F32(single(object, param)?),
        F64 => ArgValue::F64(real(object, param)?),
        F16 => ArgValue::Bytes(half(object, param)?),
        // Untyped bits hold what the number is.
        ty if ty.class() == TypeClass::Bits && is_float && bits == 32 => {
            ArgValue::F32(single(object, param)?)
        }
        ty if ty.class() == TypeClass::Bits && is_float && bits == 64 => ArgValue::F64(real(object, param)?),
        ty => {
            let bytes = integer(object, param)?.to_le_bytes();
            match (ty.class(), bits) {
                (TypeClass::Signed, 32) => ArgValue::S32(i32::from_le_bytes(first(&bytes))),
                (TypeClass::Signed, 64) => ArgValue::S64(i64::from_le_bytes(first(&bytes))),
                (_, 32) => ArgValue::U32(u32::from_le_bytes(first(&bytes))),
                (_, 64) => ArgValue::U64(u64::from_le_bytes(first(&bytes))),
                _ => ArgValue::Bytes(bytes.into_iter().take(bits.div_ceil(8) as usize).collect()),
            }
        }
    })
}

fn first<const N: usize>(bytes: &[u8; 16]) -> [u8; N] {
    std::array::from_fn(|i| bytes[i])
}

/// A whole number that a type holds, as its two's complement.
fn integer(object: &Bound<'_, PyAny>, param: &Param) -> PyResult<u128> {
    let bits = param.ty.bits().clamp(1, 128);
    let index = object.getattr_opt(intern!(object.py(), "__index__"))?;
    let number = index.ok_or_else(|| kind(object, param, "an integer"))?.call0()?;
    let (signed, unsigned) = match param.ty.class() {
        TypeClass::Signed => (true, false),
        TypeClass::Unsigned => (false, true),
        _ => (true, true),
    };
    let least = if signed { i128::MIN >> (128 - bits) } else { 0 };
    let largest = u128::MAX >> (128 - bits) >> u32::from(!unsigned);
    let out = || {
        let expected = format!("an integer from {least} to {largest}");
        out_of_range(object, param, &expected)
    };
    // What fits neither type is too large for every parameter.
    match number.extract::<i128>() {
        Ok(n) if n < least || (n >= 0 && n.unsigned_abs() > largest) => Err(out()),
        Ok(n) => Ok(n as u128),
        Err(_) => number.extract::<u128>().ok().filter(|n| *n <= largest).ok_or_else(out),
    }
}

fn real(object: &Bound<'_, PyAny>, param: &Param) -> PyResult<f64> {
    object.extract::<f64>().map_err(|e| match e.is_instance_of::<PyOverflowError>(object.py()) {
        true => out_of_range(object, param, "a number that double precision holds"),
        false => kind(object, param, "a number"),
    })
}

fn single(object: &Bound<'_, PyAny>, param: &Param) -> PyResult<f32> {
    let wide = real(object, param)?;
    let narrow = wide as f32;
    if narrow.is_infinite() && wide.is_finite() {
        return Err(out_of_range(object, param, "a number up to 3.4028235e38"));
    }
    Ok(narrow)
}

/// The bytes of a number in half precision, rounded once.
fn half(object: &Bound<'_, PyAny>, param: &Param) -> PyResult<Vec<u8>> {
    let py = object.py();
    let packed = py.import("struct")?.getattr("pack")?.call1(("<e", real(object, param)?));
    let packed = packed.map_err(|_| out_of_range(object, param, "a number up to 65504"))?;
    packed.extract()
}

fn spelled(param: &Param) -> String {
    param.array.map_or_else(|| format!(".{}", param.ty), |n| format!(".{}[{n}]", param.ty))
}

fn kind(object: &Bound<'_, PyAny>, param: &Param, expected: &str) -> PyErr {
    let got = object.get_type().name().map_or_else(|_| "an object".to_owned(), |name| name.to_string());
    let expected = format!("{expected} for {}", spelled(param));
    let message = format!("run: {} is of type {got}, expected {expected}", param.name);
    let problem = Problem::new(object.py(), Class::Argument, message).at("run", &param.name);
    problem.mismatch(expected, got).into_err()
}

fn out_of_range(object: &Bound<'_, PyAny>, param: &Param, expected: &str) -> PyErr {
    let got = object.repr().map_or_else(|_| "out of range".to_owned(), |text| text.to_string());
    let expected = format!("{expected} for {}", spelled(param));
    let message = format!("run: {} is {got}, expected {expected}", param.name);
    let problem = Problem::new(object.py(), Class::Parameter, message).at("run", &param.name);
    problem.mismatch(expected, got).into_err()
}
