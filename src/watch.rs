//! The judgement: events and time in, action out. Pure: no I/O, no sleep, so that "silent store" and
//! "late heartbeat" are tests of four lines.

use std::time::Duration;

use crate::clock::Moment;
use crate::pace::Pace;

/// Why the command is to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No renewal came through in time.
    Silent,
    /// The store says that the lease is gone.
    Lost,
    /// `--max-runtime`.
    Overran,
    /// TERM was passed on to it, and it may go on for so long only.
    Told,
    /// The guard, and with it the pid that the caller knows, was killed.
    Orphaned,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Send TERM to the tree, once.
    Terminate(Why),
    /// Send KILL to the tree, until nothing of it is left.
    Kill(Why),
}

/// What is known about one running command.
pub struct Watch {
    pace: Pace,
    /// None where no clock ends the lease, but the store alone.
    deadline: Option<Moment>,
    overrun: Option<Moment>,
    stop_on_loss: bool,
    stopping: Option<(Why, Moment)>,
}

/// A command whose lease is known to be lost has at most this long after TERM.
const LOST_GRACE: Duration = Duration::from_secs(2);

impl Watch {
    /// A command that starts under a lease until `deadline`; `None` where a live holder keeps it
    /// whatever the clock says.
    pub fn new(pace: Pace, deadline: Option<Moment>, overrun: Option<Moment>, stop_on_loss: bool) -> Watch {
        Watch { pace, deadline, overrun, stop_on_loss, stopping: None }
    }

    /// The lease was renewed.
    pub fn kept(&mut self, deadline: Moment) {
        self.deadline = self.deadline.map(|before| before.max(deadline));
    }

    /// The lease is known to be lost: stop within the short grace.
    pub fn lost(&mut self, now: Moment) -> Action {
        if !self.stop_on_loss || self.stopping.is_some_and(|(why, _)| !matches!(why, Why::Overran | Why::Told)) {
            return Action::Nothing;
        }
        let kill_at = now + self.pace.grace.min(LOST_GRACE);
        let kill_at = self.stopping.map_or(kill_at, |(_, before)| kill_at.min(before));
        self.stopping = Some((Why::Lost, kill_at));
        Action::Terminate(Why::Lost)
    }

    /// TERM was passed on, and the command has to end by this moment. The first one counts.
    pub fn told(&mut self, kill_at: Moment) {
        self.stopping.get_or_insert((Why::Told, kill_at));
    }

    /// The guard is gone: kill at once.
    pub fn orphaned(&mut self, now: Moment) {
        self.stopping = Some((Why::Orphaned, now));
    }

    /// What time alone demands. Asked first after every wake-up.
    pub fn tick(&mut self, now: Moment) -> Action {
        let last = self.last();
        if last.is_some_and(|last| now >= last) {
            let why = self.why().filter(|why| *why != Why::Told).unwrap_or(Why::Silent);
            self.stopping = Some((why, now));
            return Action::Kill(why);
        }
        // Who was told by somebody else to end is under both clocks still.
        let told_until = match self.stopping {
            Some((why, kill_at)) if now >= kill_at => return Action::Kill(why),
            Some((Why::Told, kill_at)) => kill_at,
            Some(_) => return Action::Nothing,
            None => Moment(u64::MAX),
        };
        if let Some(last) = last.filter(|last| now >= *last - self.pace.grace) {
            self.stopping = Some((Why::Silent, last.min(told_until)));
            return Action::Terminate(Why::Silent);
        }
        if self.overrun.is_some_and(|at| now >= at) {
            self.stopping = Some((Why::Overran, (now + self.pace.grace).min(told_until)));
            return Action::Terminate(Why::Overran);
        }
        Action::Nothing
    }

    /// Is the lease still provable?
    pub fn provable(&self, now: Moment) -> bool {
        self.deadline.is_none_or(|deadline| now < deadline)
    }

    /// When KILL comes at the latest; `None` where no clock ends the lease.
    pub fn last(&self) -> Option<Moment> {
        self.deadline.filter(|_| self.stop_on_loss).map(|deadline| deadline - self.pace.settle)
    }

    /// When it is too late to start; `None` where no clock ends the lease. Also who would go on without a
    /// lease does not start without one.
    pub fn start_before(&self) -> Option<Moment> {
        self.deadline.map(|deadline| deadline - self.pace.settle)
    }

    /// Why the command is being stopped, if it is.
    pub fn why(&self) -> Option<Why> {
        self.stopping.map(|(why, _)| why)
    }

    /// Is dlock itself ending the command?
    pub fn is_stopping(&self) -> bool {
        self.why().is_some_and(|why| why != Why::Told)
    }

    /// When to ask again at the latest.
    pub fn next(&self) -> Moment {
        let never = Moment(u64::MAX);
        let last = self.last().unwrap_or(never);
        let clocks = (last - self.pace.grace).min(self.overrun.unwrap_or(never));
        match self.stopping {
            Some((Why::Told, kill_at)) => clocks.min(kill_at),
            Some((_, kill_at)) => last.min(kill_at),
            None => clocks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn watch(overrun: Option<Moment>) -> (Watch, Pace, Moment) {
        let pace = Pace::new(10 * SECOND, Some(SECOND)).unwrap();
        let deadline = Moment(100_000_000);
        (Watch::new(pace, Some(deadline), overrun, true), pace, deadline)
    }

    #[test]
    fn a_silent_store_means_term_then_kill_before_the_deadline() {
        let (mut watch, pace, deadline) = watch(None);
        let term = deadline - pace.settle - pace.grace;
        assert_eq!(watch.next(), term);
        assert_eq!(watch.tick(term - SECOND), Action::Nothing);
        assert_eq!(watch.tick(term), Action::Terminate(Why::Silent));
        assert_eq!(watch.tick(term), Action::Nothing);
        assert_eq!(watch.tick(deadline - pace.settle), Action::Kill(Why::Silent));
    }

    #[test]
    fn who_goes_on_without_a_lease_does_not_start_without_one() {
        let pace = Pace::new(10 * SECOND, Some(SECOND)).unwrap();
        let watch = Watch::new(pace, Some(Moment(100_000_000)), None, false);
        assert_eq!((watch.last(), watch.start_before()), (None, Some(Moment(100_000_000) - pace.settle)));
    }

    #[test]
    fn waking_up_after_the_deadline_kills_at_once() {
        let (mut watch, _, deadline) = watch(None);
        assert_eq!(watch.tick(deadline + SECOND), Action::Kill(Why::Silent));
    }

    #[test]
    fn where_life_keeps_the_lease_only_the_store_ends_it() {
        let pace = Pace::new(10 * SECOND, Some(SECOND)).unwrap();
        let mut watch = Watch::new(pace, None, None, true);
        assert_eq!(watch.tick(Moment(u64::MAX / 2)), Action::Nothing);
        assert!(watch.provable(Moment(u64::MAX / 2)));
        assert_eq!(watch.lost(Moment(5)), Action::Terminate(Why::Lost));
    }

    #[test]
    fn a_renewal_moves_the_deadline_and_never_back() {
        let (mut watch, _, deadline) = watch(None);
        watch.kept(deadline + SECOND);
        watch.kept(deadline - SECOND);
        assert!(watch.provable(deadline));
    }

    #[test]
    fn a_known_loss_terminates_at_once_and_only_once() {
        let (mut watch, pace, _) = watch(None);
        let now = Moment(50_000_000);
        assert_eq!(watch.lost(now), Action::Terminate(Why::Lost));
        assert_eq!(watch.lost(now), Action::Nothing);
        assert_eq!(watch.tick(now + pace.grace), Action::Kill(Why::Lost));
    }

    #[test]
    fn a_command_that_was_told_to_end_has_so_long_and_no_longer_than_its_lease() {
        let (mut watch, _, deadline) = watch(None);
        let now = Moment(50_000_000);
        watch.told(now + SECOND);
        watch.told(now + 2 * SECOND);
        assert_eq!((watch.tick(now), watch.next()), (Action::Nothing, now + SECOND));
        assert_eq!(watch.tick(now + SECOND), Action::Kill(Why::Told));
        assert!(!watch.is_stopping());
        assert_eq!(watch.tick(deadline), Action::Kill(Why::Silent));
        assert!(watch.is_stopping());
    }

    #[test]
    fn who_was_told_to_end_is_still_under_the_clocks_of_runtime_and_lease() {
        let (mut one, pace, deadline) = watch(Some(Moment(50_000_000)));
        one.told(Moment(55_000_000));
        assert_eq!(one.next(), Moment(50_000_000));
        assert_eq!(one.tick(Moment(50_000_000)), Action::Terminate(Why::Overran));
        assert_eq!(one.tick(Moment(50_000_001)), Action::Nothing);
        assert_eq!(one.next(), Moment(50_000_000) + pace.grace);
        let (mut two, pace, _) = watch(None);
        two.told(deadline + SECOND);
        let term = deadline - pace.settle - pace.grace;
        assert_eq!(two.next(), term);
        assert_eq!(two.tick(term), Action::Terminate(Why::Silent));
        assert_eq!(two.tick(deadline - pace.settle), Action::Kill(Why::Silent));
    }

    #[test]
    fn an_overrun_has_its_grace_and_a_later_loss_wins() {
        let (mut watch, _, _) = watch(Some(Moment(50_000_000)));
        assert_eq!(watch.tick(Moment(50_000_000)), Action::Terminate(Why::Overran));
        assert_eq!(watch.lost(Moment(50_000_001)), Action::Terminate(Why::Lost));
        assert_eq!(watch.why(), Some(Why::Lost));
    }
}
