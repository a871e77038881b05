//! The arguments of a launch together: which arrays there are, and which of them maps and pointers are of.

use std::path::Path;

use warpwright_ptx::{ArgValue, TensorMap};

use super::argument::{Argument, ArrayArgument, MAP_HINT, Reference, map_bytes};
use super::structure::{Field, Pointer};
use crate::error::Error;

/// The arguments of a launch, and the arrays that only maps and pointers are of.
#[derive(Debug)]
pub(super) struct Arguments {
    list: Vec<Argument>,
    named: Vec<(String, ArrayArgument)>,
}

impl Arguments {
    /// Reads arguments and named arrays, and the files that they name.
    ///
    /// # Errors
    /// One is wrong, or names an array that there is not or that it does not fit.
    pub(super) fn read(args: &[String], arrays: &[String]) -> Result<Self, Error> {
        let list = args.iter().map(|text| Argument::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let mut named: Vec<(String, ArrayArgument)> = Vec::new();
        for text in arrays {
            let wrong = |why: &str| {
                let hint = "an array is NAME=FILE.npy, NAME=in:FILE.npy, NAME=out:FILE.npy:DTYPE:SHAPE or \
                            NAME=inout:FILE.npy:OUT.npy";
                Error::usage(format!("--array {text}: {why}"), hint)
            };
            let (name, form) = text.split_once('=').ok_or_else(|| wrong("has no name"))?;
            if name.is_empty() || name.contains([':', '+', ',']) || name.parse::<usize>().is_ok() {
                return Err(wrong("has a name that is empty, a number, or contains `:`, `+` or `,`"));
            }
            if named.iter().any(|(other, _)| other == name) {
                return Err(wrong("has the name of another array"));
            }
            let (kind, rest) = match form.split_once(':') {
                Some((kind @ ("in" | "out" | "inout"), rest)) => (kind, rest),
                _ => ("in", form),
            };
            let mut array = ArrayArgument::parse(kind, rest, &wrong)?;
            name.clone_into(&mut array.label);
            named.push((name.to_owned(), array));
        }
        let all = Self { list, named };
        all.check()?;
        Ok(all)
    }

    /// All arrays: first those that are arguments, in order.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &ArrayArgument> {
        let passed = self.list.iter().filter_map(|argument| match argument {
            Argument::Array(array) => Some(array),
            _ => None,
        });
        passed.chain(self.named.iter().map(|(_, array)| array))
    }

    /// The files that are read.
    pub(super) fn inputs(&self) -> impl Iterator<Item = &Path> {
        self.arrays().filter_map(ArrayArgument::input)
    }

    /// The files that are written.
    pub(super) fn outputs(&self) -> impl Iterator<Item = &Path> {
        self.arrays().filter_map(|array| array.output.as_deref())
    }

    /// The place among [`arrays`](Self::arrays) of one that is named behind `before` others.
    fn place(&self, reference: &Reference, before: usize) -> Option<usize> {
        match reference {
            Reference::Number(number) => (*number < before).then_some(*number),
            Reference::Name(name) => {
                let passed = self.arrays().count() - self.named.len();
                self.named.iter().position(|(other, _)| other == name).map(|at| passed + at)
            }
        }
    }

    /// Checks that maps and pointers have their arrays and lie in them, and that named arrays are used.
    fn check(&self) -> Result<(), Error> {
        let arrays: Vec<&ArrayArgument> = self.arrays().collect();
        let mut used = vec![false; arrays.len()];
        let mut before = 0;
        for argument in &self.list {
            let mut find = |kind: &str, reference: &Reference| {
                let found = self.place(reference, before);
                let at = found.ok_or_else(|| no_array(kind, reference, before))?;
                used[at] = true;
                Ok::<_, Error>(arrays[at])
            };
            let mut pointer = |kind: &str, pointer: &Pointer| {
                let Pointer::To { array, offset } = pointer else { return Ok(()) };
                let target = find(kind, array)?;
                let has = target.contents.len();
                if *offset > has {
                    let message =
                        format!("--arg {kind}:{array}+{offset}: `{}` has {has} bytes", target.label);
                    return Err(Error::usage(message, "an offset is in bytes"));
                }
                Ok(())
            };
            match argument {
                Argument::Array(_) => before += 1,
                Argument::Number(_) => {}
                Argument::Pointer(to) => pointer("ptr", to)?,
                Argument::Structure(structure) => {
                    for field in &structure.fields {
                        if let Field::Pointer(to) = field {
                            pointer("struct:..ptr", to)?;
                        }
                    }
                }
                Argument::Map { array, map } => {
                    let target = find("tensormap", array)?;
                    check_map(array, map, target)?;
                }
            }
        }
        let passed = arrays.len() - self.named.len();
        if let Some(((name, _), _)) = self.named.iter().zip(&used[passed..]).find(|(_, used)| !**used) {
            let message = format!("--array {name}=...: no argument is of it");
            return Err(Error::usage(
                message,
                "name it in ptr:NAME, struct:..ptr:NAME or tensormap:NAME:...",
            ));
        }
        Ok(())
    }

    /// The values of all parameters, given the addresses of [`arrays`](Self::arrays).
    pub(super) fn values(&self, addresses: &[u64]) -> Vec<ArgValue> {
        let mut before = 0;
        let base = |reference: &Reference, before| {
            self.place(reference, before).and_then(|at| addresses.get(at)).copied().unwrap_or(0)
        };
        let address = |pointer: &Pointer, before| match pointer {
            Pointer::Null => 0,
            Pointer::To { array, offset } => base(array, before).wrapping_add(*offset),
        };
        let values = self.list.iter().map(|argument| match argument {
            Argument::Number(value) => value.clone(),
            Argument::Array(_) => {
                before += 1;
                ArgValue::Address(addresses.get(before - 1).copied().unwrap_or(0))
            }
            Argument::Pointer(pointer) => ArgValue::Address(address(pointer, before)),
            Argument::Structure(structure) => {
                ArgValue::Bytes(structure.bytes(|pointer| address(pointer, before)))
            }
            Argument::Map { array, map } => {
                let map = TensorMap { base: base(array, before), ..map.clone() };
                ArgValue::TensorMap { map: Box::new(map), slot: None }
            }
        });
        values.collect()
    }
}

fn no_array(kind: &str, reference: &Reference, before: usize) -> Error {
    match reference {
        Reference::Number(number) => Error::usage(
            format!("--arg {kind}:{number}...: {before} arrays stand before it"),
            "arrays are counted from 0, in the order of the arguments",
        ),
        Reference::Name(name) => Error::usage(
            format!("--arg {kind}:{name}...: there is no array of this name"),
            "name it with --array NAME=FILE.npy",
        ),
    }
}

/// Checks that a map is one and lies in its array.
fn check_map(reference: &Reference, map: &TensorMap, target: &ArrayArgument) -> Result<(), Error> {
    if let Err(error) = map.check() {
        return Err(Error::usage(format!("--arg tensormap:{reference}:...: {error}"), MAP_HINT));
    }
    let (needs, has) = (map_bytes(map), target.contents.len());
    if needs.is_none_or(|needs| needs > has) {
        let needs = needs.map_or("more than 2^64".to_owned(), |n| n.to_string());
        let message = format!(
            "--arg tensormap:{reference}:...: the tensor has {needs} bytes, `{}` has {has}",
            target.label
        );
        return Err(Error::usage(message, MAP_HINT));
    }
    Ok(())
}
