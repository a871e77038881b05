//! Where operands live: rows for registers, literals, special registers and launch constants.

use std::collections::HashMap;
use std::ops::Range;

use warpwright_ptx::float16::{bf16_bits, f16_bits};
use warpwright_ptx::{Function, Imm, PlainSpecial, Reg, ScalarType, SpecialReg};

use super::rows::{self, Assigned};
use crate::code::layout::{LaunchValue, Layout, Slot, special_is_wide};
use crate::code::rows::{LANES, Row32, Row64};

/// Assigns rows while functions are decoded.
pub(crate) struct Registers {
    pub(crate) layout: Layout,
    /// `None` for registers that nothing mentions.
    slots: Vec<Option<Slot>>,
    temps32: Pool,
    temps64: Pool,
    temp_preds: Pool,
    literals32: HashMap<u32, u32>,
    literals64: HashMap<u64, u32>,
    lanes64: HashMap<[u64; LANES], u32>,
    specials: HashMap<SpecialReg, Slot>,
    launch: HashMap<(LaunchValue, bool), Slot>,
}

/// Rows for temporaries, which every instruction takes anew.
#[derive(Debug, Default)]
struct Pool {
    rows: Vec<u32>,
    used: usize,
}

impl Pool {
    fn take(&mut self) -> Option<u32> {
        let row = self.rows.get(self.used).copied()?;
        self.used += 1;
        Some(row)
    }

    fn add(&mut self, row: u32) -> u32 {
        self.rows.push(row);
        self.used += 1;
        row
    }
}

fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The rows that belong to one function.
pub(crate) struct Own {
    pub(crate) rows32: Range<u32>,
    pub(crate) rows64: Range<u32>,
    pub(crate) preds: Range<u32>,
}

impl Registers {
    pub(crate) fn new() -> Self {
        Self {
            // Predicate 0 guards unguarded instructions.
            layout: Layout { preds: 1, ..Layout::default() },
            slots: Vec::new(),
            temps32: Pool::default(),
            temps64: Pool::default(),
            temp_preds: Pool::default(),
            literals32: HashMap::new(),
            literals64: HashMap::new(),
            lanes64: HashMap::new(),
            specials: HashMap::new(),
            launch: HashMap::new(),
        }
    }

    /// Lays out the rows of the registers of a function as they were assigned, behind those that are there.
    pub(crate) fn begin(&mut self, function: &Function, assigned: &[Assigned]) -> Own {
        let rows = |class: usize| {
            let of_class = |(r, a): (usize, &Assigned)| match a {
                Assigned::Row(row) if rows::class(function, r) == class => *row + 1,
                _ => 0,
            };
            assigned.iter().enumerate().map(of_class).max().unwrap_or(0)
        };
        let layout = &mut self.layout;
        let (first32, first64) = (index(layout.r32.len()), index(layout.r64.len()));
        let first_pred = index(layout.preds);
        // Pairs of rows for 128 bits come after the single ones.
        let pairs = first64 + rows(1);
        let own = Own {
            rows32: first32..first32 + rows(0),
            rows64: first64..pairs + 2 * rows(2),
            preds: first_pred..first_pred + rows(3),
        };
        layout.r32.resize(own.rows32.end as usize, Row32::ZERO);
        layout.r64.resize(own.rows64.end as usize, Row64::ZERO);
        layout.preds = own.preds.end as usize;
        let mut slots: Vec<Option<Slot>> = assigned
            .iter()
            .enumerate()
            .map(|(r, a)| match (a, rows::class(function, r)) {
                (Assigned::Row(row), 0) => Some(Slot::W(first32 + row)),
                (Assigned::Row(row), 1) => Some(Slot::L(first64 + row)),
                (Assigned::Row(row), 2) => Some(Slot::Q(pairs + 2 * row)),
                (Assigned::Row(row), _) => Some(Slot::P(first_pred + row)),
                (Assigned::Nowhere | Assigned::Same(_), _) => None,
            })
            .collect();
        for r in 0..assigned.len() {
            let mut source = r;
            while let Some(Assigned::Same(next)) = assigned.get(source) {
                source = next.0 as usize;
            }
            slots[r] = slots.get(source).copied().flatten();
        }
        self.slots = slots;
        own
    }

    pub(crate) fn slot(&self, r: Reg) -> Option<Slot> {
        self.slots.get(r.0 as usize).copied().flatten()
    }

    /// Where the registers of the function live.
    pub(crate) fn slots(&self) -> &[Option<Slot>] {
        &self.slots
    }

    /// Makes a register live in a row that is there already, if it has the register's width.
    pub(crate) fn share(&mut self, r: Reg, with: Slot) -> bool {
        let Some(Some(slot)) = self.slots.get_mut(r.0 as usize) else { return false };
        let fits = matches!((*slot, with), (Slot::W(_), Slot::W(_)) | (Slot::L(_), Slot::L(_)));
        if fits {
            *slot = with;
        }
        fits
    }

    /// From here on temporaries may be used again.
    pub(crate) fn new_instruction(&mut self) {
        for pool in [&mut self.temps32, &mut self.temps64, &mut self.temp_preds] {
            pool.used = 0;
        }
    }

    /// A row for use within the instruction.
    pub(crate) fn temp32(&mut self) -> u32 {
        if let Some(row) = self.temps32.take() {
            return row;
        }
        let row = self.new32();
        self.temps32.add(row)
    }

    pub(crate) fn temp64(&mut self) -> u32 {
        if let Some(row) = self.temps64.take() {
            return row;
        }
        let row = self.new64();
        self.temps64.add(row)
    }

    pub(crate) fn temp_pred(&mut self) -> u32 {
        if let Some(row) = self.temp_preds.take() {
            return row;
        }
        let row = self.new_pred();
        self.temp_preds.add(row)
    }

    fn new32(&mut self) -> u32 {
        self.layout.r32.push(Row32::ZERO);
        index(self.layout.r32.len() - 1)
    }

    pub(crate) fn new64(&mut self) -> u32 {
        self.layout.r64.push(Row64::ZERO);
        index(self.layout.r64.len() - 1)
    }

    fn new_pred(&mut self) -> u32 {
        self.layout.preds += 1;
        index(self.layout.preds - 1)
    }

    pub(crate) fn literal32(&mut self, value: u32) -> u32 {
        if let Some(row) = self.literals32.get(&value) {
            return *row;
        }
        self.layout.r32.push(Row32([value; LANES]));
        let row = index(self.layout.r32.len() - 1);
        self.literals32.insert(value, row);
        row
    }

    pub(crate) fn literal64(&mut self, value: u64) -> u32 {
        if let Some(row) = self.literals64.get(&value) {
            return *row;
        }
        self.layout.r64.push(Row64([value; LANES]));
        let row = index(self.layout.r64.len() - 1);
        self.literals64.insert(value, row);
        row
    }

    /// A row with these values.
    pub(crate) fn lanes64(&mut self, values: [u64; LANES]) -> u32 {
        if values.iter().all(|v| *v == values[0]) {
            return self.literal64(values[0]);
        }
        *self.lanes64.entry(values).or_insert_with(|| {
            self.layout.r64.push(Row64(values));
            index(self.layout.r64.len() - 1)
        })
    }

    /// The row of a special register that does not change while a block runs.
    pub(crate) fn special(&mut self, special: SpecialReg) -> Slot {
        if let Some(slot) = self.specials.get(&special) {
            return *slot;
        }
        let slot = if special_is_wide(special) {
            Slot::L(self.new64())
        } else if special == SpecialReg::Plain(PlainSpecial::IsExplicitCluster) {
            Slot::P(self.new_pred())
        } else {
            Slot::W(self.new32())
        };
        self.specials.insert(special, slot);
        self.layout.specials.push((slot, special));
        slot
    }

    /// The row of a launch constant, 64 bits wide if `wide`.
    pub(crate) fn launch(&mut self, value: LaunchValue, wide: bool) -> Slot {
        if let Some(slot) = self.launch.get(&(value, wide)) {
            return *slot;
        }
        let slot = if wide { Slot::L(self.new64()) } else { Slot::W(self.new32()) };
        self.launch.insert((value, wide), slot);
        self.layout.launch.push((slot, value));
        slot
    }
}

/// The bits of a literal in an operand of type `ty`.
pub(crate) fn literal_bits(imm: Imm, ty: ScalarType) -> u64 {
    let bits = match imm {
        Imm::Int(v) => v as u64,
        Imm::F32(b) if ty == ScalarType::F64 => f64::from(f32::from_bits(b)).to_bits(),
        Imm::F32(b) => u64::from(b),
        Imm::F64(b) if ty.bits() == 64 => b,
        Imm::F64(b) if ty.bits() == 16 && ty.is_float() => {
            let x = f64::from_bits(b);
            u64::from(if ty == ScalarType::BF16 { bf16_bits(x) } else { f16_bits(x) })
        }
        Imm::F64(b) => u64::from((f64::from_bits(b) as f32).to_bits()),
    };
    match ty.bits() {
        64.. => bits,
        n => bits & (u64::MAX >> (64 - n)),
    }
}
