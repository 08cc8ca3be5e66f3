//! Nodes, their properties and their children. Reading addresses and sizes is for
//! [`bus`](super::bus).

use super::super::bytes::{be32, be64, before, same};
use super::walk::{Name, Token, Tree, Walk};

/// A node of a tree.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    pub(super) tree: Tree<'a>,
    /// Offset of what follows its name, in the structure block.
    pub(super) at: usize,
    /// 1 for the root.
    pub(super) depth: u32,
    name: &'a [u8],
    /// The cells of its parent's children, if they are known already.
    pub(super) cells: Option<Cells>,
}

/// The numbers of cells of an address and of a size in the `reg` of a node's children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells {
    /// `#address-cells`.
    pub address: u32,
    /// `#size-cells`.
    pub size: u32,
}

/// A property of a node.
#[derive(Clone, Copy, Debug)]
pub struct Property<'a> {
    /// Its name.
    pub name: Name<'a>,
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> Tree<'a> {
    /// The root; `None` if the structure block does not begin with a node.
    #[must_use]
    pub fn root(&self) -> Option<Node<'a>> {
        self.nodes().next()
    }

    /// All nodes, each before its children.
    pub fn nodes(&self) -> impl Iterator<Item = Node<'a>> + Clone + use<'a> {
        let mut walk = self.walk();
        core::iter::from_fn(move || {
            loop {
                if let Token::Begin { name } = walk.next().ok()?? {
                    return Some(Node::just_begun(&walk, name));
                }
            }
        })
    }
}

impl<'a> Node<'a> {
    /// The node whose `Begin` token `walk` has just returned.
    #[must_use]
    pub const fn just_begun(walk: &Walk<'a>, name: &'a [u8]) -> Self {
        Self {
            tree: walk.tree,
            at: walk.at,
            depth: walk.depth(),
            name,
            cells: None,
        }
    }

    /// The name with its unit address; empty for the root.
    #[must_use]
    pub const fn name(&self) -> &'a [u8] {
        self.name
    }

    /// Whether the node has this name. A name without a unit address fits any.
    #[must_use]
    pub fn is_named(&self, wanted: &[u8]) -> bool {
        same(self.name, wanted) || same(before(self.name, b'@'), wanted)
    }

    /// The properties. They precede all children, as the format requires.
    pub fn properties(&self) -> impl Iterator<Item = Property<'a>> + Clone + use<'a> {
        let mut walk = self.inside();
        core::iter::from_fn(move || match walk.next() {
            Ok(Some(Token::Property { name, value })) => Some(Property { name, value }),
            _ => None,
        })
    }

    /// The value of the property `name`.
    #[must_use]
    pub fn property(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.properties()
            .find(|property| property.name.is(name))
            .map(|property| property.value)
    }

    /// The children.
    #[must_use]
    pub fn children(&self) -> Children<'a> {
        self.children_with(self.child_cells())
    }

    /// The children, on a bus with these cells.
    pub(super) const fn children_with(&self, cells: Cells) -> Children<'a> {
        Children {
            walk: self.inside(),
            depth: self.depth,
            cells,
        }
    }

    /// The first child of this name. A name without a unit address fits any.
    #[must_use]
    pub fn child(&self, name: &[u8]) -> Option<Node<'a>> {
        self.children().find(|child| child.is_named(name))
    }

    /// The node around this one; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Node<'a>> {
        let mut walk = self.tree.walk();
        let mut parent = None;
        while walk.at < self.at {
            let Ok(Some(token)) = walk.next() else { break };
            match token {
                Token::Begin { name } if walk.depth() == self.depth.wrapping_sub(1) => {
                    parent = Some(Self::just_begun(&walk, name));
                }
                _ => {}
            }
        }
        parent
    }

    /// The strings of the property `name`; none if there is no such property.
    #[must_use]
    pub fn strings(&self, name: &[u8]) -> Strings<'a> {
        Strings {
            rest: self.property(name).unwrap_or_default(),
        }
    }

    /// The text of the property `name`, without the NUL at its end.
    #[must_use]
    pub fn text(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.property(name).map(|value| before(value, 0))
    }

    /// The number in the property `name`, which has one or two cells.
    #[must_use]
    pub fn number(&self, name: &[u8]) -> Option<u64> {
        let value = self.property(name)?;
        match value.len() {
            4 => be32(value, 0).map(u64::from),
            8 => be64(value, 0),
            _ => None,
        }
    }

    /// Whether `compatible` contains `wanted`.
    #[must_use]
    pub fn is_compatible(&self, wanted: &[u8]) -> bool {
        self.strings(b"compatible").has(wanted)
    }

    /// Whether the device may be used: it has no `status`, or one of `okay` and `ok`.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.text(b"status")
            .is_none_or(|status| same(status, b"okay") || same(status, b"ok"))
    }

    /// Whether the node describes banks of RAM.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        self.property(b"device_type")
            .is_some_and(|value| same(value, b"memory\0"))
    }

    const fn inside(&self) -> Walk<'a> {
        Walk::inside(self.tree, self.at, self.depth)
    }
}

/// Iterator over the children of a node.
#[derive(Clone, Debug)]
pub struct Children<'a> {
    walk: Walk<'a>,
    /// Depth of the parent.
    depth: u32,
    cells: Cells,
}

impl<'a> Iterator for Children<'a> {
    type Item = Node<'a>;

    fn next(&mut self) -> Option<Node<'a>> {
        while self.walk.depth() >= self.depth {
            match self.walk.next() {
                Ok(Some(Token::Begin { name }))
                    if self.walk.depth() == self.depth.wrapping_add(1) =>
                {
                    let node = Node::just_begun(&self.walk, name);
                    return Some(Node {
                        cells: Some(self.cells),
                        ..node
                    });
                }
                Ok(Some(_)) => {}
                _ => return None,
            }
        }
        None
    }
}

/// The strings of a property that is a list of strings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strings<'a> {
    rest: &'a [u8],
}

impl Strings<'_> {
    /// Whether the list contains this string.
    #[must_use]
    pub fn has(self, wanted: &[u8]) -> bool {
        let mut strings = self;
        strings.any(|string| same(string, wanted))
    }
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let string = before(self.rest, 0);
        let (_, rest) = self.rest.split_at_checked(string.len()).unwrap_or_default();
        self.rest = rest.split_first().map_or(&[], |(_, rest)| rest);
        Some(string)
    }
}
