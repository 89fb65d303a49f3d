//! Commands that are one of several verbs.

/// An enum of commands with its `run`, which runs the one that was typed: each verb is in one list.
macro_rules! verbs {
    (
        $(#[$of:meta])*
        pub(crate) enum $name:ident { $($(#[$attribute:meta])* $verb:ident($command:ty),)* }
    ) => {
        $(#[$of])*
        pub(crate) enum $name { $($(#[$attribute])* $verb($command),)* }

        impl $name {
            pub(crate) fn run(self) -> ashlar_daemon::error::Result<std::process::ExitCode> {
                match self { $(Self::$verb(command) => command.run(),)* }
            }
        }
    };
}

pub(crate) use verbs;
