//! Cases of the optimizers.

use std::sync::Arc;

use warpwright_ops::dynamic_map::{MIN_ABSMAX, Map};
use warpwright_ops::optimizer::reference::{EightBitMoment, eight_bit_code};
use warpwright_ops::optimizer::{
    Adam, BLOCK, ClipGradNormArgs, ClipGradNormDesc, ClippedArgs, GradArgs, GradNormArgs, GradNormDesc, Norm,
    OptimizerArgs, OptimizerDesc, ParameterArgs, Rule, Sgd, reference,
};
use warpwright_ops::plan::Real;
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Placed, Scope, Subject, view, view_mut};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected, compare};
use crate::storage;

#[derive(Debug)]
struct OptimizerSubject {
    desc: OptimizerDesc,
    /// Steps that were made before.
    before: i32,
    /// Whether gradients overflowed.
    overflowed: bool,
    /// Whether some gradients are infinite or NaN.
    special: bool,
}

const LR: f64 = 0.03125;
const GRAD_SCALE: f64 = 4.0;

/// Lengths around a vector and a block, an empty tensor among them.
const LENS: &[usize] = &[1, 5, 0, 2048, 2049, 4100, 33];

fn adam(options: Adam, weight_decay: f64) -> Rule {
    Rule::Adam(Adam { weight_decay: Real::new(weight_decay), ..options })
}

fn sgd(momentum: f64, dampening: f64, nesterov: bool) -> Rule {
    let weight_decay = Real::new(0.25);
    Rule::Sgd(Sgd { momentum: momentum.into(), dampening: dampening.into(), nesterov, weight_decay })
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let amsgrad = Adam { amsgrad: true, ..Adam::ADAMW };
    let rules = [
        adam(Adam::ADAMW, 0.25),
        adam(amsgrad, 0.25),
        adam(Adam::ADAM, 0.0),
        adam(Adam { betas: [0.5.into(), 0.75.into()], ..Adam::ADAM }, 0.25),
        sgd(0.0, 0.0, false),
        sgd(0.875, 0.25, false),
        sgd(0.875, 0.0, true),
    ];
    let many: Vec<usize> = (0..100).map(|i| 1 + i * 7 % 40).collect();
    let most: Vec<usize> = (0..300).map(|i| i % 9).collect();
    let mut out = Vec::new();
    for dtype in DType::FLOATS {
        let wide = dtype.accumulator();
        let mut push =
            |rule: Rule, number: usize, lens: &[usize], before: i32, overflowed: bool, special: bool| {
                let state = State { eight_bit: Vec::new(), before, overflowed, special };
                out.push(case(dtype, rule, number, lens, state));
            };
        for (number, rule) in rules.into_iter().enumerate() {
            push(rule, number, LENS, 2, false, false);
            push(rule, number + 1, &LENS[..2], 0, false, true);
            if scope == Scope::Full {
                push(rule, number + 2, &many, 40, false, false);
                push(rule, number + 3, &[10_000, 3], 1000, false, true);
            }
        }
        push(rules[0], 1, &many, 7, false, false);
        push(rules[5], 3, &[40, 2100], 7, true, false);
        push(rules[1], 2, &[40, 2100], 7, true, true);
        if dtype == DType::BF16 {
            push(rules[0], 1, &most, 1, false, false);
        }
        if dtype != DType::F64 {
            // Beside others, whole blocks and parts of them, and more than a launch takes.
            let lists = [
                (&[4096, 5, 256, 0, 5000][..], vec![true, false, true, true, true]),
                (&[300, 2100], vec![true, false]),
                (&many, (0..100).map(|i| i % 3 > 0).collect()),
            ];
            for (number, (lens, eight_bit)) in lists.into_iter().enumerate() {
                for (rule, before, overflowed, special) in [
                    (rules[0], 3, false, false),
                    (rules[3], 0, false, true),
                    (rules[0], 40, number == 0, true),
                    (rules[2], 0, false, false),
                ] {
                    let state = State { eight_bit: eight_bit.clone(), before, overflowed, special };
                    out.push(case(dtype, rule, number + before as usize, lens, state));
                }
            }
        }
        for norm in [Norm::L2, Norm::Infinity] {
            let lists = [(LENS, false), (&many[..], false), (&[3000, 7][..], true), (&[][..], false)];
            for (number, (lens, special)) in lists.into_iter().enumerate() {
                for max_norm in [None, Some(0.75), Some(1e9)] {
                    let grads = GradNormDesc { norm, dtype, lens: lens.to_vec() };
                    let subject = Arc::new(NormSubject { grads, max_norm, special });
                    let op = if max_norm.is_some() { "clip_grad_norm" } else { "grad_norm" };
                    let (direction, shape) = (Direction::Forward, vec![lens.len(), lens.iter().sum()]);
                    let input = format!("{norm:?}, list {number}, to {max_norm:?}");
                    // The norm has the type of sums.
                    let of = if max_norm.is_some() { dtype } else { wide };
                    out.push(Case {
                        op,
                        direction,
                        dtype,
                        shape,
                        input,
                        budget: budget::elementwise(of),
                        subject,
                    });
                }
            }
        }
    }
    out
}

/// The state before a step, and its gradients.
#[derive(Debug)]
struct State {
    /// Which parameters have moments in 8 bits.
    eight_bit: Vec<bool>,
    /// Steps that were made.
    before: i32,
    /// Whether gradients overflowed.
    overflowed: bool,
    /// Whether some gradients are infinite or NaN.
    special: bool,
}

/// A step; `number` decides about what does not follow from the other arguments.
fn case(dtype: DType, rule: Rule, number: usize, lens: &[usize], state: State) -> Case {
    let State { eight_bit, before, overflowed, special } = state;
    let wide = dtype.accumulator();
    let desc = OptimizerDesc {
        rule,
        maximize: number % 3 == 1,
        dtype,
        grad_dtype: if number % 4 == 2 { wide } else { dtype },
        master: wide != dtype && number % 2 == 1,
        grad_scale: !number.is_multiple_of(3),
        found_inf: overflowed || number % 5 == 3,
        lens: lens.to_vec(),
        eight_bit,
    };
    let what = if overflowed {
        ", overflowed"
    } else if special {
        ", special"
    } else {
        ""
    };
    let input = format!("{rule:?}, number {number}, behind step {before}{what}");
    let (direction, shape) = (Direction::Forward, vec![lens.len(), lens.iter().sum()]);
    let (op, budget) = (desc.op(), budget::elementwise(dtype));
    let subject = Arc::new(OptimizerSubject { desc, before, overflowed, special });
    Case { op, direction, dtype, shape, input, budget, subject }
}

#[derive(Debug)]
struct NormSubject {
    grads: GradNormDesc,
    /// `None` for the norm alone.
    max_norm: Option<f64>,
    /// Whether there is a NaN.
    special: bool,
}

impl Subject for NormSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let GradNormDesc { norm, dtype, ref lens } = self.grads;
        let wide = dtype.accumulator();
        let (mut placed, mut values) = (Vec::new(), Vec::new());
        for (number, &len) in lens.iter().enumerate() {
            let mut grad: Vec<f64> =
                Input::Normal.values(len, number as u64).iter().map(|v| storage::round(dtype, *v)).collect();
            if self.special {
                grad.iter_mut().skip(2).step_by(999).for_each(|g| *g = f64::NAN);
            }
            placed.push(bench.input("grad", dtype, &grad, usize::from(number % 3 == 1))?);
            values.push(grad);
        }
        let all = || values.iter().flatten();
        let total = match norm {
            _ if all().any(|g| g.is_nan()) => f64::NAN,
            Norm::L2 => all().map(|g| g * g).sum::<f64>().sqrt(),
            Norm::Infinity => all().fold(0.0, |most: f64, g| most.max(g.abs())),
        };
        let mut total_norm = bench.output("total_norm", wide, 1, 0)?;
        let expected = [Expected::exactly(total)];
        let Some(max_norm) = self.max_norm else {
            let plan = self.grads.plan(bench.target())?;
            let mut workspace = bench.workspace(&plan)?;
            bench.launch(|stream| {
                let grads = placed.iter().map(|grad| Ok(GradArgs { grad: grad.view()? }));
                let args = GradNormArgs {
                    total_norm: total_norm.view_mut()?,
                    workspace: view_mut(&mut workspace)?,
                    grads: grads.collect::<Result<_, CaseError>>()?,
                };
                Ok(plan.launch(stream, args)?)
            })?;
            return bench.compare(&total_norm, &expected);
        };
        let plan =
            ClipGradNormDesc { grads: self.grads.clone(), max_norm: max_norm.into() }.plan(bench.target())?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let grads = placed.iter_mut().map(|grad| Ok(ClippedArgs { grad: grad.view_mut()? }));
            let args = ClipGradNormArgs {
                total_norm: total_norm.view_mut()?,
                workspace: view_mut(&mut workspace)?,
                grads: grads.collect::<Result<_, CaseError>>()?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let coefficient = match max_norm / (total + 1e-6) {
            // NaN stays.
            c if c > 1.0 => 1.0,
            c => c,
        };
        let mut comparison = bench.compare_saved(dtype, &total_norm, &expected)?;
        for (grad, values) in placed.iter().zip(&values) {
            let expected: Vec<Expected> = values.iter().map(|g| Expected::exactly(g * coefficient)).collect();
            comparison = comparison.merge(bench.compare(grad, &expected)?);
        }
        Ok(comparison)
    }
}

/// The tensors of a parameter.
struct Set {
    grad: Placed,
    param: Placed,
    first: Option<Placed>,
    second: Option<Placed>,
    largest: Option<Placed>,
    master: Option<Placed>,
    absmax: Option<[Placed; 2]>,
}

/// The maps of both moments.
const MAPS: [Map; 2] = [Map::Signed, Map::Unsigned];

impl OptimizerSubject {
    /// The moments of a parameter in 8 bits.
    fn moments(&self, len: usize, salt: u64) -> [EightBitMoment; 2] {
        [salt + 2, salt + 3].map(|salt| {
            let seen = self.before > 0;
            let codes = Input::Uniform.values(len, salt).into_iter().map(|v| (v * 1e6) as i64 as u8);
            let absmax = Input::Normal.values(len.div_ceil(BLOCK), salt).into_iter().map(|v| v.abs() as f32);
            // Nothing was seen before the first step.
            EightBitMoment {
                codes: codes.map(|code| if seen { code } else { 0 }).collect(),
                absmax: absmax.map(|absmax| if seen { absmax } else { 0.0 }).collect(),
            }
        })
    }

    /// A step of a parameter with moments in 8 bits against the reference.
    fn compare_eight_bit(
        &self,
        bench: &Bench<'_>,
        set: &Set,
        state: EightBitState,
        made: i32,
    ) -> Result<Comparison, CaseError> {
        let (dtype, scale) = (self.desc.dtype, if self.desc.grad_scale { GRAD_SCALE } else { 1.0 });
        let EightBitState { mut param, moments, grad } = state;
        let exact = |values: Vec<f64>| values.into_iter().map(Expected::exactly).collect::<Vec<_>>();
        let (mut new_param, mut codes, mut absmax) = (exact(param.clone()), Vec::new(), Vec::new());
        if self.overflowed {
            for moment in &moments {
                codes.push(exact(moment.codes.iter().map(|code| f64::from(*code)).collect()));
                absmax.push(exact(moment.absmax.iter().map(|most| f64::from(*most)).collect()));
            }
        } else {
            let [first, second] = &moments;
            let (scales, new) =
                reference::step_eight_bit(&self.desc, &mut param, [first, second], &grad, (made, LR, scale));
            let expected = |(value, s): (&f64, &reference::Scales)| Expected {
                value: *value,
                scale: s.param,
                underflow: s.corrections * f64::EPSILON,
            };
            new_param = param.iter().zip(&scales).map(expected).collect();
            for (i, (moment, map)) in new.iter().zip(MAPS).enumerate() {
                let (_, most) = EightBitMoment::of(map, moment);
                let scales: Vec<f64> = scales.iter().map(|s| [s.first, s.second][i]).collect();
                let widest: Vec<f64> =
                    scales.chunks(BLOCK).map(|block| block.iter().copied().fold(0.0, f64::max)).collect();
                let of = |(most, widest): (&f64, &f64)| Expected {
                    value: *most,
                    scale: widest.min(f32::MAX.into()),
                    underflow: 0.0,
                };
                absmax.push(most.iter().zip(&widest).map(of).collect());
                let got = [&set.first, &set.second][i].as_ref().map(|codes| bench.read(codes)).transpose()?;
                let code = |(at, got): (usize, f64)| {
                    let divisor = most[at / BLOCK].max(f64::from(MIN_ABSMAX));
                    let t = moment[at] / divisor;
                    // Roundings of f32: of the moment, of the largest one, and of the quotient.
                    let slack = (scales[at] + t.abs() * widest[at / BLOCK]) / divisor * 2f64.powi(-21);
                    let [low, high] = [t - slack, t + slack].map(|t| f64::from(eight_bit_code(map, t)));
                    Expected::exactly(if (low..=high).contains(&got) { got } else { low })
                };
                codes.push(got.into_iter().flatten().enumerate().map(code).collect());
            }
        }
        let mut all = bench.compare(&set.param, &new_param)?;
        if let Some(master) = &set.master {
            all = all.merge(bench.compare_saved(dtype, master, &new_param)?);
        }
        for (i, (codes, absmax)) in codes.iter().zip(&absmax).enumerate() {
            let tensors = ([&set.first, &set.second][i], set.absmax.as_ref());
            if let (Some(of_codes), Some(of_absmax)) = tensors {
                all = all.merge(bench.compare(of_codes, codes)?);
                all = all.merge(bench.compare_saved(dtype, &of_absmax[i], absmax)?);
            }
        }
        Ok(all)
    }
}

/// A parameter before a step, and its gradient.
enum Before {
    Wide(reference::Parameter, Vec<f64>),
    EightBit(EightBitState),
}

/// A parameter with moments in 8 bits.
struct EightBitState {
    param: Vec<f64>,
    moments: [EightBitMoment; 2],
    grad: Vec<f64>,
}

impl OptimizerSubject {
    fn values(&self, dtype: DType, len: usize, salt: u64) -> Vec<f64> {
        let values = Input::Normal.values(len, salt << 20 | len as u64);
        values.into_iter().map(|v| storage::round(dtype, v)).collect()
    }
}

impl Subject for OptimizerSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let OptimizerDesc { rule, dtype, grad_dtype, master, ref lens, .. } = self.desc;
        let wide = dtype.accumulator();
        let plan = self.desc.plan(bench.target())?;
        let (is_adam, amsgrad, has_first) = match rule {
            Rule::Adam(adam) => (true, adam.amsgrad, true),
            Rule::Sgd(sgd) => (false, false, sgd.momentum.get() != 0.0),
        };
        let before = |values: &[f64], step: i32| -> Vec<f64> {
            // Nothing was seen before the first step.
            values.iter().map(|v| if step == 0 { 0.0 } else { *v }).collect()
        };
        let (mut sets, mut states) = (Vec::new(), Vec::new());
        for (number, &len) in lens.iter().enumerate() {
            let salt = 8 * number as u64;
            let lead = usize::from(number % 3 == 1);
            let values = |dtype, salt| self.values(dtype, len, salt);
            let squares = |salt| -> Vec<f64> {
                values(wide, salt).iter().map(|v| storage::round(wide, v * v)).collect()
            };
            let mut grad = values(grad_dtype, salt + 1);
            if self.special {
                let specials = [f64::INFINITY, f64::NAN, f64::NEG_INFINITY, 0.0];
                grad.iter_mut().step_by(3).zip(specials.iter().cycle()).for_each(|(g, s)| *g = *s);
            }
            if self.desc.eight_bit.get(number) == Some(&true) {
                let moments = self.moments(len, salt);
                let param = values(if master { wide } else { dtype }, salt);
                let wide_codes =
                    |i: usize| moments[i].codes.iter().map(|code| f64::from(*code)).collect::<Vec<_>>();
                let codes = |name, i| bench.input(name, DType::U8, &wide_codes(i), lead);
                let absmax = |name, i: usize| {
                    let values: Vec<f64> = moments[i].absmax.iter().map(|most| f64::from(*most)).collect();
                    bench.input(name, DType::F32, &values, lead)
                };
                sets.push(Set {
                    grad: bench.input("grad", grad_dtype, &grad, lead)?,
                    param: bench.input("param", dtype, &param, lead)?,
                    first: Some(codes("first", 0)?),
                    second: Some(codes("second", 1)?),
                    largest: None,
                    master: bench.optional_input("master", wide, master.then_some(&param), lead)?,
                    absmax: Some([absmax("first_absmax", 0)?, absmax("second_absmax", 1)?]),
                });
                states.push(Before::EightBit(EightBitState { param, moments, grad }));
                continue;
            }
            let state = reference::Parameter {
                param: values(if master { wide } else { dtype }, salt),
                first: before(&values(wide, salt + 2), self.before),
                second: before(&squares(salt + 3), self.before),
                largest: before(&squares(salt + 4), self.before),
            };
            sets.push(Set {
                grad: bench.input("grad", grad_dtype, &grad, lead)?,
                param: bench.input("param", dtype, &state.param, lead)?,
                first: bench.optional_input("first", wide, has_first.then_some(&state.first), lead)?,
                second: bench.optional_input("second", wide, is_adam.then_some(&state.second), lead)?,
                largest: bench.optional_input("largest", wide, amsgrad.then_some(&state.largest), lead)?,
                master: bench.optional_input("master", wide, master.then_some(&state.param), lead)?,
                absmax: None,
            });
            states.push(Before::Wide(state, grad));
        }
        let lr = bench.input("lr", wide, &[LR], 0)?;
        let mut step = bench.input("step", DType::F32, &[f64::from(self.before)], 0)?;
        let scale = vec![GRAD_SCALE];
        let grad_scale =
            bench.optional_input("grad_scale", DType::F32, self.desc.grad_scale.then_some(&scale), 0)?;
        let found = vec![if self.overflowed { 1.0 } else { 0.0 }];
        let found_inf =
            bench.optional_input("found_inf", DType::F32, self.desc.found_inf.then_some(&found), 0)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let mut parameters = Vec::new();
            for set in &mut sets {
                let [first_absmax, second_absmax] = match &mut set.absmax {
                    Some([first, second]) => [Some(first.view_mut()?), Some(second.view_mut()?)],
                    None => [None, None],
                };
                parameters.push(ParameterArgs {
                    grad: set.grad.view()?,
                    param: set.param.view_mut()?,
                    first: view_mut(&mut set.first)?,
                    second: view_mut(&mut set.second)?,
                    largest: view_mut(&mut set.largest)?,
                    master: view_mut(&mut set.master)?,
                    first_absmax,
                    second_absmax,
                });
            }
            let args = OptimizerArgs {
                lr: lr.view()?,
                step: step.view_mut()?,
                grad_scale: view(&grad_scale)?,
                found_inf: view(&found_inf)?,
                workspace: view_mut(&mut workspace)?,
                parameters,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let made = self.before + i32::from(!self.overflowed);
        let mut all = bench.compare_saved(dtype, &step, &[Expected::exactly(f64::from(made))])?;
        if self.overflowed {
            // All else is as it was: the launch shows in what the first kernel tells the others.
            let told: Vec<f64> = workspace.as_ref().map(|w| bench.read(w)).transpose()?.unwrap_or_default();
            let active =
                compare(DType::F64, &told[..1], &[Expected::exactly(0.0)], Bench::poison(DType::F64));
            all = all.merge(active);
        }
        let scale = if self.desc.grad_scale { GRAD_SCALE } else { 1.0 };
        for (set, state) in sets.iter().zip(states) {
            let (mut state, grad) = match state {
                Before::Wide(state, grad) => (state, grad),
                Before::EightBit(state) => {
                    all = all.merge(self.compare_eight_bit(bench, set, state, made)?);
                    continue;
                }
            };
            let exact = |values: &[f64]| values.iter().map(|v| Expected::exactly(*v)).collect::<Vec<_>>();
            let [param, first, second] = if self.overflowed {
                [exact(&state.param), exact(&state.first), exact(&state.second)]
            } else {
                let scales = reference::step(&self.desc, &mut state, &grad, made, LR, scale);
                let expected = |values: &[f64], of: fn(&reference::Scales) -> [f64; 2]| {
                    let one = |(value, scales): (&f64, &reference::Scales)| {
                        let [scale, underflow] = of(scales);
                        Expected { value: *value, scale, underflow }
                    };
                    values.iter().zip(&scales).map(one).collect::<Vec<_>>()
                };
                [
                    expected(&state.param, |s| [s.param, s.corrections * f64::EPSILON]),
                    expected(&state.first, |s| [s.first, 0.0]),
                    expected(&state.second, |s| [s.second, 0.0]),
                ]
            };
            let largest = match self.overflowed {
                true => exact(&state.largest),
                false => {
                    let of =
                        |(e, v): (&Expected, &f64)| Expected { value: *v, scale: e.scale.max(v.abs()), ..*e };
                    second.iter().zip(&state.largest).map(of).collect()
                }
            };
            all = all.merge(bench.compare(&set.param, &param)?);
            let saved = [
                (&set.first, &first),
                (&set.second, &second),
                (&set.largest, &largest),
                (&set.master, &param),
            ];
            for (tensor, expected) in saved {
                if let Some(tensor) = tensor {
                    all = all.merge(bench.compare_saved(dtype, tensor, expected)?);
                }
            }
        }
        Ok(all)
    }
}
