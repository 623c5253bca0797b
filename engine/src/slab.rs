//! Numbers for objects, handed out in rising order and used again as late as possible, so that a stale number (a QPN in a
//! late packet) seldom names a new object.

/// Free numbers `first..count`.
#[derive(Clone, Debug)]
pub(crate) struct IndexAllocator {
    used: Vec<bool>,
    first: u32,
    cursor: u32,
    in_use: u32,
}

impl IndexAllocator {
    /// All of `first..count` are free.
    pub(crate) fn new(first: u32, count: u32) -> Self {
        Self { used: vec![false; count as usize], first, cursor: first, in_use: 0 }
    }

    /// A free number, or `None` if there is none.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        let count = self.used.len() as u32;
        let index = (self.cursor..count).chain(self.first..self.cursor).find(|&i| !self.used[i as usize])?;
        self.used[index as usize] = true;
        self.in_use += 1;
        self.cursor = if index + 1 < count { index + 1 } else { self.first };
        Some(index)
    }

    /// Takes a number back.
    pub(crate) fn release(&mut self, index: u32) {
        if let Some(used) = self.used.get_mut(index as usize)
            && std::mem::take(used)
        {
            self.in_use -= 1;
        }
    }

    /// Numbers that are out.
    pub(crate) fn in_use(&self) -> u32 {
        self.in_use
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_only_after_all_others() {
        let mut allocator = IndexAllocator::new(2, 5);
        assert_eq!((0..4).map(|_| allocator.allocate()).collect::<Vec<_>>(), [Some(2), Some(3), Some(4), None]);
        allocator.release(3);
        allocator.release(3);
        assert_eq!(allocator.in_use(), 2);
        assert_eq!(allocator.allocate(), Some(3));
    }
}
