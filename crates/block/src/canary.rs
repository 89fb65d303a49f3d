//! Rules that a test breaks on purpose, to see that the simulation notices.
//!
//! A crate lists its rules in an enum, and the code that keeps a rule asks [`broken`]. With the feature
//! `testing`, which only the dev-dependencies of these crates ask for, a test switches a rule off with
//! `break_rule`, for its thread and at run time. In any other build the answer is the constant `false`.

#[cfg(any(test, feature = "testing"))]
pub use switch::{BrokenRule, break_rule, broken};

#[cfg(any(test, feature = "testing"))]
mod switch {
    use std::any::Any;
    use std::cell::RefCell;
    use std::marker::PhantomData;

    thread_local! {
        static BROKEN: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
    }

    /// A rule of the thread stays broken until this is dropped.
    #[must_use = "the rule holds again when it is dropped"]
    pub struct BrokenRule(PhantomData<*const ()>);

    impl Drop for BrokenRule {
        fn drop(&mut self) {
            BROKEN.take();
        }
    }

    /// Makes this thread break `rule`, and no other.
    pub fn break_rule(rule: impl Any) -> BrokenRule {
        BROKEN.set(Some(Box::new(rule)));
        BrokenRule(PhantomData)
    }

    /// Whether this thread breaks `rule`.
    pub fn broken<R: PartialEq + Any>(rule: R) -> bool {
        BROKEN.with_borrow(|broken| {
            broken.as_ref().and_then(|broken| broken.downcast_ref()) == Some(&rule)
        })
    }
}

/// Whether a rule is broken on purpose: never, in this build.
#[cfg(not(any(test, feature = "testing")))]
#[inline(always)]
pub const fn broken<R: Copy>(_: R) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_broken_in_its_thread_until_the_guard_goes() {
        #[derive(Clone, Copy, PartialEq, Debug)]
        enum Rule {
            One,
            Two,
        }
        #[derive(Clone, Copy, PartialEq, Debug)]
        enum OtherRule {
            One,
        }
        assert!(!broken(Rule::One));
        let guard = break_rule(Rule::One);
        assert!(broken(Rule::One) && !broken(Rule::Two) && !broken(OtherRule::One));
        assert!(!std::thread::spawn(|| broken(Rule::One)).join().unwrap());
        drop(guard);
        assert!(!broken(Rule::One));
    }
}
