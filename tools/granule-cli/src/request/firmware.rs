//! The part of a request for booting through firmware: plain data, and the combinations that are refused.

use clap::ValueEnum;

use super::Request;

/// The way in which the kernel is started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Firmware {
    /// By QEMU itself, or by instructions in flash.
    #[default]
    Direct,
    /// By EDK2, which gets the kernel from QEMU.
    Uefi,
    /// By U-Boot's `booti`, from a disk.
    UBoot,
    /// By U-Boot's `bootefi`, from a disk.
    UBootEfi,
    /// By EDK2 and GRUB, from a disk.
    Grub,
    /// By EDK2 and systemd-boot, from a disk.
    SystemdBoot,
}

impl Firmware {
    /// The word on the command line and in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Uefi => "uefi",
            Self::UBoot => "u-boot",
            Self::UBootEfi => "u-boot-efi",
            Self::Grub => "grub",
            Self::SystemdBoot => "systemd-boot",
        }
    }

    /// Whether EDK2 is what QEMU starts.
    pub fn is_edk2(self) -> bool {
        matches!(self, Self::Uefi | Self::Grub | Self::SystemdBoot)
    }

    /// Whether a boot loader starts the kernel.
    pub fn has_loader(self) -> bool {
        matches!(self, Self::Grub | Self::SystemdBoot)
    }

    /// Whether the bootargs pass through a shell or a menu, in which quotes have a meaning.
    fn reads_quotes(self) -> bool {
        !matches!(self, Self::Direct | Self::Uefi)
    }

    /// Checks the request without looking at any file.
    pub(crate) fn check(self, request: &Request) -> Result<(), String> {
        let refuse = |what: &str| Err(format!("{what} with --firmware {}", self.word()));
        if request.acpi && !self.is_edk2() {
            return refuse("--acpi: only EDK2 hands over ACPI tables, and it does not run")
                .map_err(|line| line + ": take uefi, grub or systemd-boot");
        }
        if request.disk.is_some() {
            if self != Self::Uefi {
                return refuse("--disk: its own boot loader is started by EDK2 alone, not")
                    .map_err(|line| line + ": take uefi");
            }
            if !request.bootargs().is_empty() || request.initrd.is_some() || request.kexec.is_some()
            {
                return Err(
                    "--disk boots a disk as it is: leave out options that put words into the command \
                     line, --initrd and --kexec, or boot with --firmware grub"
                        .into(),
                );
            }
        }
        if request.loader.is_some() && !self.has_loader() {
            return refuse("--loader: no boot loader runs")
                .map_err(|line| line + ": take grub or systemd-boot");
        }
        if self == Self::Direct {
            return match request.firmware_file {
                None => Ok(()),
                Some(_) => refuse("--firmware-file: no firmware runs")
                    .map_err(|line| line + ": take uefi or u-boot"),
            };
        }
        let placed = [
            ("--dtb", request.dtb.is_some()),
            ("--load-address", request.load_address.is_some()),
            ("--dtb-address", request.dtb_address.is_some()),
        ];
        if let Some((option, _)) = placed.iter().find(|(_, given)| *given) {
            return refuse(&format!(
                "{option}: firmware chooses tree and places itself"
            ))
            .map_err(|line| line + "; leave it out, or boot directly");
        }
        let bootargs = request.bootargs();
        let bad = |c: char| c.is_control() || matches!(c, '\'' | '"' | '\\');
        if self.reads_quotes()
            && let Some(c) = bootargs.chars().find(|&c| bad(c))
        {
            return refuse(&format!(
                "--append holds {c:?}, which the shell or menu on the way would take for its own"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_command_line() {
        for firmware in Firmware::value_variants() {
            let value = firmware.to_possible_value().unwrap();
            assert_eq!(value.get_name(), firmware.word());
        }
    }

    #[test]
    fn what_does_not_go_together_is_named_in_one_line() {
        let check = |firmware, change: &dyn Fn(&mut Request)| {
            let mut request = Request::default().firmware(firmware);
            change(&mut request);
            let result = request.check();
            assert!(
                result
                    .as_ref()
                    .err()
                    .is_none_or(|line| !line.contains('\n'))
            );
            result
        };
        let acpi = |request: &mut Request| request.acpi = true;
        let loader = |request: &mut Request| request.loader = Some("g".into());
        let file = |request: &mut Request| request.firmware_file = Some("f".into());
        for firmware in Firmware::value_variants() {
            let firmware = *firmware;
            assert_eq!(check(firmware, &|_| ()), Ok(()));
            assert_eq!(check(firmware, &acpi).is_ok(), firmware.is_edk2());
            assert_eq!(check(firmware, &loader).is_ok(), firmware.has_loader());
            let is_direct = firmware == Firmware::Direct;
            assert_eq!(check(firmware, &file).is_ok(), !is_direct);
            let placed = |request: &mut Request| request.load_address = Some(4 << 30);
            assert_eq!(check(firmware, &placed).is_ok(), is_direct);
            for text in ["a'b", "a\"b", "a\\b", "a\nb"] {
                let append = |request: &mut Request| request.append = Some(text.into());
                let quotes = !matches!(firmware, Firmware::Direct | Firmware::Uefi);
                assert_eq!(check(firmware, &append).is_err(), quotes, "{text:?}");
            }
        }
        let disk = |request: &mut Request| request.disk = Some("d".into());
        assert_eq!(check(Firmware::Uefi, &disk), Ok(()));
        assert!(check(Firmware::Grub, &disk).is_err());
        let worded = |request: &mut Request| {
            request.disk = Some("d".into());
            request.append = Some("x".into());
        };
        assert!(check(Firmware::Uefi, &worded).is_err());
        let line = check(Firmware::UBoot, &acpi).unwrap_err();
        assert!(line.starts_with("--acpi: ") && line.contains("--firmware u-boot: take uefi"));
    }
}
