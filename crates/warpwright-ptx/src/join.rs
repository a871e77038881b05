//! Several modules as one, for a text that holds the kernels of all.

use std::collections::HashSet;

use crate::module::{Alias, Function, InitialAddress, Linkage, Module, SourceFile, Symbol, Variable};
use crate::types::{StateSpace, Target};

/// Why two modules do not go into one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Code for the one cannot be assembled for the other, nor the other way round.
    #[error("no target takes both {left} and {right}")]
    Targets {
        /// Of the first module.
        left: Target,
        /// Of the second.
        right: Target,
    },
    /// Both define something of this name that others may see, and not the same.
    #[error("both modules define `{name}`, and not the same")]
    Name {
        /// The name.
        name: String,
    },
    /// `.file` gives one number to two names.
    #[error("file {index} is \"{left}\" in one module and \"{right}\" in the other")]
    File {
        /// The number.
        index: u32,
        /// The name in the first module.
        left: String,
        /// The name in the second.
        right: String,
    },
}

impl Module {
    /// Takes in the functions and variables of `other`. The module is then for the higher version, and for that target of the
    /// two for which the code of both can be assembled. What both have alike is there once; a variable of `other` whose
    /// name means something else here, and that no other module sees, gets another name.
    ///
    /// # Errors
    /// [`JoinError`]; the module is as it was then.
    pub fn join(&mut self, mut other: Self) -> Result<(), JoinError> {
        let (left, right) = (self.target, other.target);
        let target = match (left.builds_for(right), right.builds_for(left)) {
            (true, _) => right,
            (false, true) => left,
            (false, false) => return Err(JoinError::Targets { left, right }),
        };
        let files = self.new_files(&other)?;
        let variables = self.place_variables(&mut other)?;
        let functions = self.place_functions(&other);
        let of = |places: &[u32], index: u32| places.get(index as usize).copied().unwrap_or(u32::MAX);
        let renumber = |symbol: &mut Symbol| match symbol {
            Symbol::ModuleVariable(index) => *index = of(&variables, *index),
            Symbol::Function(index) => *index = of(&functions, *index),
            Symbol::Param(_) | Symbol::LocalVariable(_) | Symbol::Return(_) => {}
        };
        other.functions.iter_mut().flat_map(|f| &mut f.symbols).for_each(renumber);
        let inside = other.functions.iter_mut().flat_map(|f| &mut f.variables);
        let addresses = other.variables.iter_mut().chain(inside).filter_map(|v| v.init.as_mut());
        addresses.flat_map(|i| &mut i.addresses).for_each(|InitialAddress { symbol, .. }| renumber(symbol));
        for Alias { function, of: meant } in &mut other.aliases {
            (*function, *meant) = (of(&functions, *function), of(&functions, *meant));
        }
        // Now that the numbers mean the same, functions of one name can be compared.
        for (function, &place) in other.functions.iter().zip(&functions) {
            let differs = self.functions.get(place as usize).is_some_and(|known| known != function);
            if differs || self.variables.iter().any(|known| known.name == function.name) {
                return Err(JoinError::Name { name: function.name.clone() });
            }
        }
        let (known_variables, known_functions) = (self.variables.len(), self.functions.len());
        self.version = self.version.max(other.version);
        self.target = target;
        self.debug |= other.debug;
        self.variables.extend(beyond(other.variables, &variables, known_variables));
        self.functions.extend(beyond(other.functions, &functions, known_functions));
        self.aliases.extend(beyond_known(&self.aliases, other.aliases));
        self.pragmas.extend(beyond_known(&self.pragmas, other.pragmas));
        self.files.extend(files);
        Ok(())
    }

    /// The files of `other` that this module does not know.
    fn new_files(&self, other: &Self) -> Result<Vec<SourceFile>, JoinError> {
        let mut new = Vec::new();
        for file in &other.files {
            match self.files.iter().find(|known| known.index == file.index) {
                None => new.push(file.clone()),
                Some(known) if known.name == file.name => {}
                Some(known) => {
                    let (left, right) = (known.name.clone(), file.name.clone());
                    return Err(JoinError::File { index: file.index, left, right });
                }
            }
        }
        Ok(new)
    }

    /// Where the functions of `other` will be: beside those that are here, or in the place of one of the same name.
    fn place_functions(&self, other: &Self) -> Vec<u32> {
        let mut next = self.functions.len();
        let place = |function: &Function| {
            let known = self.functions.iter().position(|known| known.name == function.name);
            number(known.unwrap_or_else(|| take(&mut next)))
        };
        other.functions.iter().map(place).collect()
    }

    /// Where the variables of `other` will be, after those whose names mean something else here have others.
    fn place_variables(&self, other: &mut Self) -> Result<Vec<u32>, JoinError> {
        let mut names: HashSet<String> = all_names(self).chain(all_names(other)).collect();
        let mut next = self.variables.len();
        let mut places = Vec::with_capacity(other.variables.len());
        for variable in &mut other.variables {
            let known = self.variables.iter().position(|known| known.name == variable.name);
            let function = self.functions.iter().any(|f| f.name == variable.name);
            // Addresses are numbers of symbols, which are not those of this module.
            let alike = |i: &usize| self.variables[*i] == *variable && holds_no_address(variable);
            if let Some(index) = known.filter(alike) {
                places.push(number(index));
                continue;
            }
            if known.is_some() || function {
                if !is_private(variable) {
                    return Err(JoinError::Name { name: variable.name.clone() });
                }
                let free = |n: u32| Some(format!("{}_{n}", variable.name)).filter(|new| !names.contains(new));
                variable.name = (1..).find_map(free).unwrap_or_default();
                names.insert(variable.name.clone());
            }
            places.push(number(take(&mut next)));
        }
        Ok(places)
    }
}

fn take(next: &mut usize) -> usize {
    *next += 1;
    *next - 1
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Whether another module could not tell the variable by its name: `.extern .shared` is the launch's dynamic memory,
/// whatever it is called.
fn is_private(variable: &Variable) -> bool {
    variable.linkage == Linkage::Internal
        || variable.linkage == Linkage::Extern && variable.space == StateSpace::Shared
}

fn holds_no_address(variable: &Variable) -> bool {
    variable.init.as_ref().is_none_or(|init| init.addresses.is_empty())
}

/// The items whose places are not among those that were known.
fn beyond<T>(items: Vec<T>, places: &[u32], known: usize) -> Vec<T> {
    let new = items.into_iter().zip(places).filter(|(_, place)| **place as usize >= known);
    new.map(|(item, _)| item).collect()
}

fn beyond_known<T: PartialEq>(known: &[T], items: Vec<T>) -> Vec<T> {
    items.into_iter().filter(|item| !known.contains(item)).collect()
}

/// Every name that a symbol in the module may have; those inside a function hide those outside.
fn all_names(module: &Module) -> impl Iterator<Item = String> {
    let of = |f: &Function| -> Vec<String> {
        let params = f.params.iter().chain(&f.returns).map(|p| p.name.clone());
        params.chain(f.variables.iter().map(|v| v.name.clone())).chain([f.name.clone()]).collect()
    };
    module.variables.iter().map(|v| v.name.clone()).chain(module.functions.iter().flat_map(of))
}
