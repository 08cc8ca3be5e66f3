# The commands a person types; what they do is in xtask (`cargo xtask --help`).

.DEFAULT_GOAL := help
.PHONY: help run report check test test-all test-peers audit soak image disk setup

help:
	@echo "make run    boot one image with 4K, 16K and 64K pages, print one table"
	@echo "make report page tables of this kernel with each page size beside Debian's, as one HTML page"
	@echo "make check  before each commit: format, lints, tests of what changed, three boots"
	@echo "make test   before each push: every test, host and QEMU (ONLY=step for one of them)"
	@echo "make test-all    what CI runs (.ci/run): with Miri and Debian's kernels"
	@echo "make test-peers  Debian's kernels and shell beside ours, and left for (fetches them by apt)"
	@echo "make audit  ask the database of advisories about every lock file"
	@echo "make soak   in full what test-all has samples of, resumable, at most six hours"
	@echo "make image  build target/granule/Image"
	@echo "make disk   a disk or USB stick that boots it through UEFI and GRUB (OUTPUT=file; fetches GRUB by apt)"
	@echo "make setup  install what is missing (run, test and soak do it too)"

# A linker must be there before xtask can be built; xtask then sees to the rest.
setup:
	@./tools/xtask/bootstrap.sh
	@cargo xtask setup

image: setup
	@cargo xtask image

disk: setup
	@cargo xtask disk $(if $(OUTPUT),--output $(OUTPUT))

run: setup
	@cargo xtask run

report: setup
	@cargo run --quiet --package granule-peers -- --only report

test: setup
	@cargo xtask test $(foreach step,$(ONLY),--only $(step))

check: setup
	@cargo xtask check

test-all: setup
	@cargo xtask test --all

test-peers: setup
	@cargo run --quiet --package granule-peers -- $(PEERS)

audit: setup
	@cargo xtask audit; code=$$?; \
	case $$code in 0) why="no advisory";; 1) why="advisories";; 3) why="not checked";; *) why="failed";; esac; \
	echo "audit: exit code $$code ($$why)"; exit $$code

soak: setup
	@cargo xtask soak $(SOAK)
