//! Builds and frees the tables for leaving this kernel, for the page size chosen at boot. The tables are
//! separate from the kernel's own. The caller names the ranges to map.

use super::walker::KernelEnvironment;
use granule::arch::Dispatch;
use granule::arch::Page;
use granule_kcore::sizes;
use granule_kexec::{Needs, Transition, TransitionError};

/// Builds the tables. See [`granule_kexec::build`].
pub(crate) fn build(
    environment: KernelEnvironment<'_>,
    needs: &Needs<'_>,
) -> Result<Transition, TransitionError> {
    let size = needs.upper.page_size();
    sizes::dispatch(size, Build { environment, needs })
}

/// The arguments of [`build`].
struct Build<'a> {
    environment: KernelEnvironment<'a>,
    needs: &'a Needs<'a>,
}

impl Dispatch for Build<'_> {
    type Output = Result<Transition, TransitionError>;

    fn run<P: Page>(self) -> Self::Output {
        granule_kexec::build::<P, _>(self.environment, self.needs)
    }
}

/// Frees the tables. See [`granule_kexec::free`].
pub(crate) fn free(environment: KernelEnvironment<'_>, transition: &Transition) {
    let [_, upper] = transition.geometries;
    sizes::dispatch(
        upper.page_size(),
        Free {
            environment,
            transition,
        },
    );
}

/// The arguments of [`free`].
struct Free<'a> {
    environment: KernelEnvironment<'a>,
    transition: &'a Transition,
}

impl Dispatch for Free<'_> {
    type Output = ();

    fn run<P: Page>(self) {
        granule_kexec::free::<P, _>(self.environment, self.transition);
    }
}
