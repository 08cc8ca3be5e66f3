//! A headless Chromium for tests of pages: Debian's, unpacked beside the build, with Debian's fonts. What
//! pages must show belongs to the callers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::debian;
use xtask::workspace::target_dir;
use xtask::{deadline, files};

/// The browser without windows, and fonts, so that pages look the same everywhere.
const PACKAGES: [&str; 2] = ["chromium-headless-shell", "fonts-dejavu-core"];
/// A page that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(240);

pub(crate) struct Browser(PathBuf);

/// The colour scheme of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Light,
    Dark,
}

impl Browser {
    /// The browser, which is downloaded the first time. `GRANULE_CHROMIUM` names another one.
    pub(crate) fn get() -> Result<Self> {
        if let Some(own) = std::env::var_os("GRANULE_CHROMIUM") {
            return Ok(Self(own.into()));
        }
        let folder = target_dir().join("chromium");
        let wrapper = folder.join("chromium");
        if !wrapper.is_file() {
            let root = debian::unpack(&folder, &PACKAGES.map(str::to_owned)).context(
                "Chromium comes from Debian: run `apt-get update`, or let GRANULE_CHROMIUM name one",
            )?;
            let fonts = folder.join("fonts.conf");
            let text = format!(
                "<?xml version=\"1.0\"?>\n<!DOCTYPE fontconfig SYSTEM \"fonts.dtd\">\n<fontconfig>\n\
                 <dir>{}</dir>\n<cachedir>{}</cachedir>\n</fontconfig>\n",
                root.join("usr/share/fonts").display(),
                folder.join("font-cache").display()
            );
            files::write(&fonts, text)?;
            let libraries = debian::libraries(&root);
            let text = format!(
                "#!/bin/sh\nexport LD_LIBRARY_PATH='{}:{}' FONTCONFIG_FILE='{}'\nexec '{}' \"$@\"\n",
                libraries.display(),
                libraries.join("pulseaudio").display(),
                fonts.display(),
                root.join("usr/lib/chromium/chromium-headless-shell")
                    .display()
            );
            // The last step, so that a download that was cut off begins again.
            debian::script(&wrapper, &text)?;
        }
        Ok(Self(wrapper))
    }

    fn run(&self, scheme: Scheme, page: &Path, options: &[String]) -> Result<String> {
        let mut command = Command::new(&self.0);
        // The pages are our own, and a sandbox would need rights that a build may not have.
        command.args(["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
        let number = u32::from(scheme == Scheme::Light);
        command.arg(format!("--blink-settings=preferredColorScheme={number}"));
        command.args(options);
        command.arg(format!("file://{}", page.display()));
        let printed = deadline::run_for(command, LIMIT)?;
        ensure!(
            printed.status.is_some_and(|status| status.success()),
            "{} failed: run it with `{} {}` to see why",
            self.0.display(),
            options.join(" "),
            page.display()
        );
        Ok(printed.stdout)
    }

    /// The page's elements after its scripts have run, as HTML.
    pub(crate) fn elements(&self, scheme: Scheme, page: &Path) -> Result<String> {
        let size = "--window-size=1400,2000".to_owned();
        self.run(scheme, page, &[size, "--dump-dom".to_owned()])
    }

    pub(crate) fn picture(
        &self,
        scheme: Scheme,
        page: &Path,
        size: (u32, u32),
        to: &Path,
    ) -> Result<Vec<u8>> {
        let size = format!("--window-size={},{}", size.0, size.1);
        self.run(
            scheme,
            page,
            &[size, format!("--screenshot={}", to.display())],
        )?;
        files::read(to)
    }

    /// The page as it is printed, a PDF.
    pub(crate) fn print(&self, page: &Path, to: &Path) -> Result<Vec<u8>> {
        let to_file = format!("--print-to-pdf={}", to.display());
        self.run(
            Scheme::Dark,
            page,
            &["--no-pdf-header-footer".to_owned(), to_file],
        )?;
        files::read(to)
    }
}
