//! The structs of options: each field is an option of the command line, and a key of a `stack.toml`, with the same name.

/// A struct of options. It may have those of front ends, each a struct of its own, and fields that are no options.
macro_rules! options {
    ($(#[$about:meta])* pub struct $name:ident {
        $(front_ends { $($front_end:ident: $options:ty,)* })?
        $($(#[$of:meta])* pub $option:ident: $type:ty,)*
        $(no_options { $($others:tt)* })?
    }) => {
        $(#[$about])*
        #[derive(clap::Args, serde::Deserialize, Clone, PartialEq, Eq, Debug, Default)]
        #[serde(default)]
        pub struct $name {
            $($(#[allow(missing_docs)] #[command(flatten)] #[serde(skip)] pub $front_end: $options,)*)?
            $($(#[$of])* pub $option: $type,)*
            $($($others)*)?
        }

        const _: () = {
            use ashlar_disks::options::{BadValue, Given, Options, Table, take_keys};

            impl Given for $name {
                fn over(mut self, file: Self) -> Self {
                    $($(self.$front_end = self.$front_end.over(file.$front_end);)*)?
                    $(self.$option = self.$option.over(file.$option);)*
                    self
                }

                fn paths(&mut self) -> Vec<&mut std::path::PathBuf> {
                    let mut paths = Vec::new();
                    $($(paths.extend(self.$front_end.paths());)*)?
                    $(paths.extend(self.$option.paths());)*
                    paths
                }
            }

            impl Options for $name {
                fn keys() -> Vec<&'static str> {
                    let own = vec![$(stringify!($option)),*];
                    [$($(<$options>::keys(),)*)? own].concat()
                }

                fn take(file: &mut Table<'_>) -> std::result::Result<Self, BadValue> {
                    Ok(Self {
                        $($($front_end: Options::take(file)?,)*)?
                        ..take_keys(file, &[$(stringify!($option)),*])?
                    })
                }
            }
        };

        $(
            impl $name {
                /// The options of the front ends, in the order of the help. They start in the reverse order.
                pub(crate) fn front_ends(&self) -> Vec<&dyn crate::front_ends::FrontEndOptions> {
                    vec![$(&self.$front_end),*]
                }
            }
        )?
    };
}

pub(crate) use options;
