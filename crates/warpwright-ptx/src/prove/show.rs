//! Polynomials for people.

use std::fmt::Write;

use super::poly::{Atom, Poly};
use super::terms::{Array, Kind, Terms};
use super::walk::Walk;
use crate::inst::{Axis, BlockId};
use crate::module::{Function, SourceLoc};

/// Terms that are shown.
const TERMS: usize = 8;

/// The name of an array.
pub(super) fn array(walk: &Walk<'_>, array: Array) -> String {
    match array {
        Array::Param(at) => walk.function.params[at as usize].name.clone(),
        Array::Module(at) => walk.module.variables[at as usize].name.clone(),
        Array::Function(at) => walk.function.variables[at as usize].name.clone(),
        Array::Dynamic => "dynamic shared memory".to_owned(),
    }
}

/// A polynomial with the kernel's names.
pub(super) fn poly(walk: &Walk<'_>, poly: &Poly) -> String {
    text(walk.function, &walk.terms, poly, 2)
}

fn text(function: &Function, terms: &Terms, poly: &Poly, depth: u32) -> String {
    let mut shown = String::new();
    // The constant comes last.
    let (constants, others): (Vec<_>, Vec<_>) = poly.terms().partition(|(m, _)| m.is_empty());
    for (at, (monomial, coefficient)) in others.into_iter().chain(constants).enumerate() {
        if at == TERMS {
            shown += " + ...";
            break;
        }
        let sign = match (at, coefficient < 0) {
            (0, true) => "-",
            (0, false) => "",
            (_, true) => " - ",
            (_, false) => " + ",
        };
        let mut factors: Vec<String> =
            monomial.iter().map(|atom| unknown(function, terms, *atom, depth)).collect();
        if coefficient.abs() != 1 || factors.is_empty() {
            factors.insert(0, coefficient.abs().to_string());
        }
        let _ = write!(shown, "{sign}{}", factors.join("*"));
    }
    if shown.is_empty() { "0".to_owned() } else { shown }
}

fn unknown(function: &Function, terms: &Terms, atom: Atom, depth: u32) -> String {
    let axis = |axis: &Axis| match axis {
        Axis::X => "x",
        Axis::Y => "y",
        Axis::Z => "z",
    };
    let param = |at: &u32| function.params[*at as usize].name.as_str();
    let line = |block: u32, index: usize| match function.blocks.get(block as usize).map(|b| b.location(index))
    {
        Some(SourceLoc::Ptx { line, .. }) => Some(line),
        _ => None,
    };
    match terms.kind(atom) {
        Kind::Tid(a, _) => format!("tid.{}", axis(a)),
        Kind::Ctaid(a, _) => format!("ctaid.{}", axis(a)),
        Kind::Ntid(a) => format!("ntid.{}", axis(a)),
        Kind::Nctaid(a) => format!("nctaid.{}", axis(a)),
        Kind::Param(at) => param(at).to_owned(),
        Kind::Quotient(at, by) => format!("({}/{by})", param(at)),
        Kind::Piece(at, offset, _) => format!("{}[{offset}]", param(at)),
        Kind::Base(Array::Param(at)) => format!("&{}", param(at)),
        Kind::Base(_) => "&variable".to_owned(),
        Kind::Counter { header, .. } => match line(*header, 0) {
            Some(line) => format!("(rounds of the loop at line {line})"),
            None => format!("(rounds of the loop of block {})", BlockId(*header).0),
        },
        Kind::Carried { header, .. } => match line(*header, 0) {
            Some(line) => format!("(a value of the loop at line {line})"),
            None => "(a value of a loop)".to_owned(),
        },
        Kind::Opaque { site, .. } => match line(site.block, site.index as usize) {
            Some(line) => format!("(the result of line {line})"),
            None => "(an unknown value)".to_owned(),
        },
        Kind::Floor(dividend, divisor) if depth > 0 => {
            let [p, q] = [dividend, divisor].map(|p| text(function, terms, p, depth - 1));
            format!("(({p})/{q})")
        }
        Kind::Choice { alternatives, .. } if depth > 0 => {
            let all: Vec<String> =
                alternatives.iter().map(|(_, p)| text(function, terms, p, depth - 1)).collect();
            format!("({})", all.join(" or "))
        }
        Kind::Xor { a, b, low, .. } if depth > 0 => {
            let [p, q] = [a, b].map(|p| text(function, terms, p, depth - 1));
            format!("(({p} ^ {q})/{})", 1i128 << low)
        }
        Kind::Floor(..) | Kind::Xor { .. } | Kind::Choice { .. } => "(..)".to_owned(),
    }
}
