//! A contract as facts about unknowns.

use std::collections::HashMap;

use super::contract::{Contract, ContractError, Node, Relation};
use super::decide;
use super::poly::Poly;
use super::terms::{Array, Formula, Kind, Terms};
use crate::inst::{Axis, Inst, Operand, PlainSpecial, SpecialReg};
use crate::module::{Function, Module};
use crate::types::{ScalarType, StateSpace};

/// Facts that hold before the first instruction.
pub(super) struct Launches {
    pub(super) terms: Terms,
    /// Bytes of arrays.
    pub(super) extents: HashMap<Array, Poly>,
    /// Assumptions beyond the contract, as text for people.
    pub(super) assumptions: Vec<String>,
}

impl Launches {
    /// The extents of blocks and of the grid that are known.
    pub(super) fn shape(&self) -> [[Option<u32>; 3]; 2] {
        let known = |kind| self.terms.extent(kind).and_then(|extent| u32::try_from(extent).ok());
        [AXES.map(|(axis, _)| known(Kind::Ntid(axis))), AXES.map(|(axis, _)| known(Kind::Nctaid(axis)))]
    }
}

pub(super) const AXES: [(Axis, &str); 3] = [(Axis::X, "x"), (Axis::Y, "y"), (Axis::Z, "z")];

/// Bytes that an array has at most: what addresses of a device can tell apart.
const LARGEST: i128 = (1 << 63) - 1;

pub(super) fn launches(
    module: &Module,
    function: &Function,
    contract: &Contract,
) -> Result<Launches, ContractError> {
    let launches = Launches { terms: Terms::default(), extents: HashMap::new(), assumptions: Vec::new() };
    let mut lowering = Lowering { module, function, contract, launches };
    lowering.parameters()?;
    lowering.shapes()?;
    for assumption in &contract.assumptions {
        lowering.assume(&assumption.to_string(), &assumption.left, assumption.relation, &assumption.right)?;
    }
    lowering.arrays()?;
    Ok(lowering.launches)
}

struct Lowering<'a> {
    module: &'a Module,
    function: &'a Function,
    contract: &'a Contract,
    launches: Launches,
}

impl Lowering<'_> {
    /// The ranges of scalar parameters.
    fn parameters(&mut self) -> Result<(), ContractError> {
        let named = self.contract.arrays.keys().chain(self.contract.ranges.keys());
        for name in named {
            if self.position(name).is_none() {
                return Err(ContractError::Name {
                    name: name.clone(),
                    expected: "no parameter of the kernel",
                });
            }
        }
        for (position, param) in (0u32..).zip(&self.function.params) {
            let given = self.contract.ranges.get(&param.name);
            if param.array.is_some() || param.ty.is_float() {
                if given.is_some() {
                    let expected = "no number that has a range: give ranges of integers";
                    return Err(ContractError::Name { name: param.name.clone(), expected });
                }
                continue;
            }
            let bits = param.ty.bits();
            let (low, high) = match given {
                Some((low, high)) => {
                    let (low, high) = (i128::from(*low), i128::from(*high));
                    let most = if low < 0 { (1i128 << (bits - 1)) - 1 } else { (1i128 << bits) - 1 };
                    if low < -(1i128 << (bits - 1)) || high > most {
                        let text = format!("{}={low}..{high}", param.name);
                        let defect = "does not fit the type of the parameter";
                        return Err(ContractError::Value { text, defect });
                    }
                    (low, high)
                }
                None if matches!(
                    param.ty,
                    ScalarType::S8 | ScalarType::S16 | ScalarType::S32 | ScalarType::S64
                ) =>
                {
                    (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
                }
                None => (0, (1i128 << bits) - 1),
            };
            self.launches.terms.limit(Kind::Param(position), (Some(low), Some(high)));
        }
        Ok(())
    }

    fn position(&self, name: &str) -> Option<u32> {
        let at = self.function.params.iter().position(|p| p.name == name)?;
        u32::try_from(at).ok()
    }

    /// Extents of blocks and of the grid, as far as they are fixed.
    fn shapes(&mut self) -> Result<(), ContractError> {
        let required = self.function.directives.required_threads;
        if let (Some(required), Some(block)) = (required, self.contract.block)
            && required != block
        {
            let text = format!("block {block:?}");
            return Err(ContractError::Value { text, defect: "is not the `.reqntid` of the kernel" });
        }
        if let (Some(grid), true) = (self.contract.grid, self.function.directives.blocks_are_clusters) {
            let text = format!("grid {grid:?}");
            return Err(ContractError::Value {
                text,
                defect: "counts clusters, because of `.blocksareclusters`",
            });
        }
        let block = required.or(self.contract.block);
        for (at, (axis, name)) in AXES.into_iter().enumerate() {
            let reads = self.reads(axis);
            for (kind, shape, read, register) in [
                (Kind::Ntid(axis), block, reads.thread, "tid"),
                (Kind::Nctaid(axis), self.contract.grid, reads.block, "ctaid"),
            ] {
                let terms = &mut self.launches.terms;
                if let Some(shape) = shape {
                    terms.define(kind, Poly::small(i64::from(shape[at])));
                } else if !read {
                    terms.define(kind, Poly::small(1));
                    self.launches
                        .assumptions
                        .push(format!("n{register}.{name} = 1: %{register}.{name} is not read"));
                }
            }
        }
        let terms = &mut self.launches.terms;
        let most = self.function.directives.max_threads.map_or(1024, |[x, y, z]| {
            (i64::from(x).saturating_mul(i64::from(y)).saturating_mul(i64::from(z))).min(1024)
        });
        let sizes = AXES.map(|(axis, _)| terms.value(Kind::Ntid(axis)));
        let threads = sizes[0].times(&sizes[1]).and_then(|p| p.times(&sizes[2]));
        if let Some(room) = threads.and_then(|threads| Poly::small(most).minus(&threads)) {
            terms.assumed.push(Formula::AtLeast(room));
        }
        Ok(())
    }

    /// Which indices of an axis the kernel or the contract mention.
    fn reads(&self, axis: Axis) -> Reads {
        let mut reads = Reads { thread: false, block: false };
        let instructions = self.function.blocks.iter().flat_map(|b| &b.instructions);
        for instruction in instructions {
            if let Inst::Mov { src: Operand::Special(s), .. } | Inst::Cvt { a: Operand::Special(s), .. } =
                &instruction.inst
            {
                match s {
                    SpecialReg::Tid(a) if *a == axis => reads.thread = true,
                    SpecialReg::Ctaid(a) if *a == axis => reads.block = true,
                    SpecialReg::Plain(PlainSpecial::LaneId | PlainSpecial::WarpId) if axis == Axis::X => {
                        reads.thread = true;
                    }
                    SpecialReg::ClusterCtaid(_)
                    | SpecialReg::ClusterId(_)
                    | SpecialReg::Plain(PlainSpecial::ClusterCtaRank) => reads.block = true,
                    _ => {}
                }
            }
        }
        let mut mention = |name: &str| {
            let (register, of) = name.split_once('.').unwrap_or(("", ""));
            if AXES.iter().any(|(a, text)| *a == axis && *text == of) {
                reads.thread |= register == "ntid";
                reads.block |= register == "nctaid";
            }
        };
        for assumption in &self.contract.assumptions {
            assumption.left.names(&mut mention);
            assumption.right.names(&mut mention);
        }
        let counts = self.contract.arrays.values().map(|extent| &extent.count);
        counts.chain(&self.contract.shared).for_each(|count| count.node().names(&mut mention));
        reads
    }

    fn assume(
        &mut self,
        text: &str,
        left: &Node,
        relation: Relation,
        right: &Node,
    ) -> Result<(), ContractError> {
        if relation == Relation::Equal {
            // Equations replace unknowns, so that products with them are the same monomials.
            if let (Node::Binary('%', of, by), Node::Number(0)) = (left, right)
                && let (Node::Name(name), Node::Number(by)) = (&**of, &**by)
                && let Some(kind @ Kind::Param(position)) = self.unknown(name)?
                && *by > 0
            {
                let quotient = self.launches.terms.value(Kind::Quotient(position, i128::from(*by)));
                let value = quotient.scaled(i128::from(*by)).ok_or_else(|| too_large(text))?;
                return self.define(text, kind, value);
            }
            for (name, other) in [(left, right), (right, left)] {
                let Node::Name(name) = name else { continue };
                let mut mentions = false;
                other.names(&mut |n| mentions |= n == name);
                if let (Some(kind), false) = (self.unknown(name)?, mentions) {
                    let value = self.value(text, other)?;
                    return self.define(text, kind, value);
                }
            }
        }
        let (left, right) = (self.value(text, left)?, self.value(text, right)?);
        let difference = left.minus(&right).ok_or_else(|| too_large(text))?;
        let above = |p: Poly| p.plus_constant(-1).map(Formula::AtLeast).ok_or_else(|| too_large(text));
        let formula = match relation {
            Relation::Equal => Formula::equal(&difference),
            Relation::NotEqual => Formula::equal(&difference).not(),
            Relation::AtLeast => Formula::AtLeast(difference),
            Relation::AtMost => Formula::AtLeast(difference.negated()),
            Relation::Greater => above(difference)?,
            Relation::Less => above(difference.negated())?,
        };
        self.launches.terms.assumed.push(formula);
        Ok(())
    }

    /// Replaces an unknown by its value from here on, and says that it is equal to it where it was used before.
    fn define(&mut self, text: &str, kind: Kind, value: Poly) -> Result<(), ContractError> {
        let terms = &mut self.launches.terms;
        let difference = Poly::from(terms.atom(kind.clone())).minus(&value).ok_or_else(|| too_large(text))?;
        terms.assumed.push(Formula::equal(&difference));
        terms.define(kind, value);
        Ok(())
    }

    /// The kind of a name that still stands for an unknown.
    fn unknown(&mut self, name: &str) -> Result<Option<Kind>, ContractError> {
        let kind = self.kind(name)?;
        let atom = self.launches.terms.atom(kind.clone());
        let is_unknown = self.launches.terms.value(kind.clone()).as_atom() == Some(atom);
        Ok(is_unknown.then_some(kind))
    }

    fn kind(&self, name: &str) -> Result<Kind, ContractError> {
        if let Some(position) = self.position(name) {
            let param = &self.function.params[position as usize];
            if param.ty.is_float() || param.array.is_some() || self.contract.arrays.contains_key(name) {
                let expected = "no integer parameter";
                return Err(ContractError::Name { name: name.to_owned(), expected });
            }
            return Ok(Kind::Param(position));
        }
        for (axis, text) in AXES {
            match name.split_once('.') {
                Some(("ntid", of)) if of == text => return Ok(Kind::Ntid(axis)),
                Some(("nctaid", of)) if of == text => return Ok(Kind::Nctaid(axis)),
                _ => {}
            }
        }
        let expected = "neither a parameter of the kernel nor one of ntid.x to nctaid.z";
        Err(ContractError::Name { name: name.to_owned(), expected })
    }

    fn value(&mut self, text: &str, node: &Node) -> Result<Poly, ContractError> {
        let too_large = || too_large(text);
        Ok(match node {
            Node::Number(number) => Poly::small(*number),
            Node::Name(name) => {
                let kind = self.kind(name)?;
                self.launches.terms.value(kind)
            }
            Node::Binary(operator, left, right) => {
                let (left, right) = (self.value(text, left)?, self.value(text, right)?);
                match operator {
                    '+' => left.plus(&right).ok_or_else(too_large)?,
                    '-' => left.minus(&right).ok_or_else(too_large)?,
                    '*' => left.times(&right).ok_or_else(too_large)?,
                    _ => {
                        let terms = &mut self.launches.terms;
                        let positive = right.plus_constant(-1).ok_or_else(too_large)?;
                        if !decide::implies(terms, &[], &Formula::AtLeast(positive)) {
                            let defect = "divides by what may not be positive";
                            return Err(ContractError::Value { text: text.to_owned(), defect });
                        }
                        let quotient = terms.floor(&left, &right).ok_or_else(too_large)?;
                        let product = quotient.times(&right).ok_or_else(too_large)?;
                        let rest = left.minus(&product).ok_or_else(too_large)?;
                        if *operator == '/' { quotient } else { rest }
                    }
                }
            }
        })
    }

    /// The bytes of arrays and variables.
    fn arrays(&mut self) -> Result<(), ContractError> {
        for (name, extent) in &self.contract.arrays {
            let Some(position) = self.position(name) else { continue };
            if self.function.params[position as usize].bytes() != 8 {
                let expected = "no pointer: a pointer has 8 bytes";
                return Err(ContractError::Name { name: name.clone(), expected });
            }
            let text = extent.count.to_string();
            let count = self.value(&text, extent.count.node())?;
            let bytes = count.scaled(extent.dtype.bytes() as i128).ok_or_else(|| too_large(&text))?;
            let room = bytes.negated().plus_constant(LARGEST).ok_or_else(|| too_large(&text))?;
            self.launches.terms.assumed.extend([Formula::AtLeast(bytes.clone()), Formula::AtLeast(room)]);
            self.launches.extents.insert(Array::Param(position), bytes);
        }
        let shared = match &self.contract.shared {
            Some(expression) => {
                let bytes = self.value(&expression.to_string(), expression.node())?;
                self.launches.terms.assumed.push(Formula::AtLeast(bytes.clone()));
                bytes
            }
            None => Poly::default(),
        };
        self.launches.extents.insert(Array::Dynamic, shared);
        let module = (0u32..).zip(&self.module.variables).map(|(at, v)| (Array::Module(at), v));
        let inside = (0u32..).zip(&self.function.variables).map(|(at, v)| (Array::Function(at), v));
        for (array, variable) in module.chain(inside) {
            let bytes =
                variable.bytes().filter(|_| variable.len.is_some()).and_then(|b| i64::try_from(b).ok());
            if let (Some(bytes), true) = (bytes, variable.space != StateSpace::Param) {
                self.launches.extents.insert(array, Poly::small(bytes));
            }
        }
        Ok(())
    }
}

struct Reads {
    thread: bool,
    block: bool,
}

fn too_large(text: &str) -> ContractError {
    ContractError::Value { text: text.to_owned(), defect: "is too large" }
}
