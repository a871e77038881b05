//! Says what is wrong with an access, and records it or ends the launch.

use crate::context::Context;
use crate::events::problem::Problem;
use crate::flow::Flow;
use crate::launch::Fault;
use crate::report::{Event, Key, Severity, Tool, coordinates};
use crate::warp::Warp;

impl Context<'_> {
    /// Records a bad access of a lane; without memcheck the launch ends, as on a device.
    #[cold]
    pub(crate) fn bad_access(&mut self, warp: &Warp, pc: u32, lane: usize, problem: &Problem) -> Flow {
        let site = self.site(warp, lane as u32);
        if self.checks.memcheck {
            let key = Key { tool: Tool::Memcheck, kind: problem.kind, pc, other_pc: None };
            self.findings.record(key, site, || Event {
                severity: Severity::Error,
                message: problem.message.clone(),
                help: problem.help.to_owned(),
                address: Some(problem.address),
                other: None,
            });
            return Flow::Next;
        }
        self.fault.get_or_insert(Fault::Access {
            line: self.code.position(pc).line,
            block: self.block.coordinates,
            thread: coordinates(site.thread, self.shared.config.block),
            message: problem.message.clone(),
        });
        Flow::Stop
    }
}
