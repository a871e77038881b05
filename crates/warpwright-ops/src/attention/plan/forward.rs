//! Plans of the forward function.

use warpwright_dsl::{KernelArgs, Optional, Strided};
use warpwright_ptx::{DType, Target};

use super::super::kernels::dropout::Keys;
use super::super::kernels::forward::{Forward, ForwardArgs, Masked, MaskedForwardArgs, ResultArgs};
use super::super::options::Common;
use super::super::score::ProblemArgs;
use super::super::tuning::{self, Config, DecodeConfig, Work};
use super::super::{
    AttentionArgs, AttentionDesc, AttentionInputs, AttentionOptions, Float8Cache, OP, statistics_type,
};
use super::{Algorithm, alignment, check_divides, inputs, step};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{Layout, Operation, Plan, PlanParts, Variant};

impl Operation for AttentionDesc {
    type Args<'a> = AttentionArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let c = self.checked(target)?;
        let layouts = [self.q, self.k, self.v, self.o];
        let AttentionOptions { packed, dropout, block_mask, .. } = self.options;
        let usual = packed.is_none() && dropout.is_none() && block_mask.is_none();
        let few = (1..=tuning::FEW_QUERIES).contains(&self.q.shape[1]) && usual;
        if few || self.options.paged.is_some() || self.options.float8.is_some() {
            let mut configs = c.decode_configs(self, target)?;
            let mut splits = c.splits(self.cache_dtype(), target, configs[0]);
            if let Some((tma, of_tma)) = self.tma_decode(&c, target, &layouts) {
                configs.retain(|config| !matches!(config, DecodeConfig::Mma(_)));
                configs.insert(0, DecodeConfig::Tma(tma));
                splits = of_tma;
            }
            let variants = self.decode_variants(&c, target, &configs, splits)?;
            return Ok(self.with_variants(&c, target, variants, self.splits_bytes(splits)));
        }
        let mut variants = Vec::new();
        let mut workspace = 0;
        if let Some(layout) = self.wgmma(&c, target) {
            variants.push(self.wgmma_variant(&c, target, layout, None)?);
        }
        if let Some(layouts) = self.split_f16(&c, target) {
            variants.push(self.split_f16_variant(&c, target, layouts)?);
            workspace = Self::split_f16_bytes(&c, layouts);
        }
        for config in c.configs(self.dtype, Work::Forward, target, &layouts)? {
            let alignment = alignment(self.dtype, config.layout().vector());
            // One kernel for an alignment.
            if !variants.iter().any(|variant| variant.alignment == alignment) {
                variants.push(self.block_variant(&c, target, config)?);
            }
        }
        Ok(self.with_variants(&c, target, variants, workspace))
    }
}

impl AttentionDesc {
    /// The element type of keys and values.
    pub(in crate::attention) fn cache_dtype(&self) -> DType {
        if self.options.float8.is_some() { DType::F8E4M3 } else { self.dtype }
    }

    /// The problem, if the target has kernels for it.
    fn checked(&self, target: Target) -> Result<Common, PlanError> {
        if self.options.float8.is_some() {
            Float8Cache::check(OP, "q", self.dtype, target)?;
        }
        Common::new(self, &self.outputs())
    }

    /// The plan with one given algorithm, for comparisons.
    ///
    /// # Errors
    /// As [`Operation::plan`], and [`PlanError::Parameter`] if the problem or the target has no such kernel.
    pub fn plan_with(&self, target: Target, algorithm: Algorithm) -> Result<Plan<Self>, PlanError> {
        let c = self.checked(target)?;
        if self.options.float8.is_some() && !matches!(algorithm, Algorithm::Decode { .. }) {
            let expected = "that of few queries where keys are of 8-bit floats";
            return Err(PlanError::refused(OP, "algorithm", format!("{algorithm:?}"), expected));
        }
        if self.options.block_mask.is_some() && matches!(algorithm, Algorithm::Decode { .. }) {
            let expected = "one of many queries with block_mask";
            return Err(PlanError::refused(OP, "algorithm", format!("{algorithm:?}"), expected));
        }
        let (variants, workspace) = match algorithm {
            Algorithm::Simt(layout) => (vec![self.block_variant(&c, target, Config::Simt(layout))?], 0),
            Algorithm::Mma(layout) => (vec![self.block_variant(&c, target, Config::Mma(layout))?], 0),
            Algorithm::Wgmma { layout, blocks } => {
                self.check_wgmma(&c, target, layout)?;
                (vec![self.wgmma_variant(&c, target, layout, blocks)?], 0)
            }
            Algorithm::SplitF16(layout, tensors) => {
                let layouts = self.check_split_f16(&c, target, (layout, tensors))?;
                (vec![self.split_f16_variant(&c, target, layouts)?], Self::split_f16_bytes(&c, layouts))
            }
            Algorithm::Decode { layout, splits } => {
                (self.decode_variants(&c, target, &[layout], splits)?, self.splits_bytes(splits))
            }
        };
        Ok(self.with_variants(&c, target, variants, workspace))
    }

    /// The kernel that a block of either unit runs.
    fn block_variant(&self, c: &Common, target: Target, config: Config) -> Result<Variant, PlanError> {
        let mut steps = Vec::new();
        if let Some(grid) = c.grid(c.longest[0].div_ceil(config.layout().rows()), c.heads)? {
            let (problem, results) = (ProblemArgs::new(c), self.results());
            let def = Forward { dtype: self.dtype, kind: c.kind, config };
            let work = (Work::Forward, self.dtype, target);
            steps.push(match c.mask_args(Keys::Columns) {
                None => step(&def, config, work, grid, ForwardArgs { problem, results }.values())?,
                Some(mask) => {
                    check_divides(config)?;
                    let args = MaskedForwardArgs { problem, results, mask };
                    step(&Masked(def), config, work, grid, args.values())?
                }
            });
        }
        Ok(Variant { alignment: alignment(self.dtype, config.layout().vector()), steps })
    }

    pub(super) fn rows(&self) -> usize {
        self.q.shape[0] * self.q.shape[2] * self.q.shape[1]
    }

    /// The results of forward kernels.
    pub(super) fn results(&self) -> ResultArgs {
        ResultArgs {
            o: Strided { data: AttentionArgs::o.arg(), strides: self.o.steps() },
            lse: AttentionArgs::lse.arg(),
            sinks: Optional { value: AttentionInputs::sinks.arg(), given: self.options.sinks },
        }
    }

    pub(super) fn outputs(&self) -> [(&'static str, &Layout); 1] {
        [("o", &self.o)]
    }

    /// The plan with a workspace of so many bytes.
    pub(super) fn with_variants(
        &self,
        c: &Common,
        target: Target,
        variants: Vec<Variant>,
        workspace_bytes: u64,
    ) -> Plan<Self> {
        let statistics = statistics_type(self.dtype);
        let outputs = [
            AttentionArgs::o.laid_out(self.dtype, self.o),
            AttentionArgs::lse.holds(statistics, self.rows()),
            AttentionArgs::workspace.scratch(statistics, workspace_bytes as usize / statistics.bytes()),
        ];
        let tensors = AttentionArgs::specs(inputs(c, self).into_iter().chain(outputs));
        let direction = Direction::Forward;
        Plan::new(PlanParts { op: OP, direction, target, tensors, variants, workspace_bytes })
    }
}
