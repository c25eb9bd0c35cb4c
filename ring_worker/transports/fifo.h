// A queue that reuses its memory and that of its elements: it allocates only to exceed its largest size so
// far.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace psring {

template <typename T>
class Fifo {
 public:
  Fifo() : slots_(16) {}

  bool empty() const { return begin_ == end_; }
  size_t size() const { return end_ - begin_; }

  // Appends an element, which keeps the state of an earlier one.
  T& PushBack() {
    if (size() == slots_.size()) Grow();
    return slots_[end_++ & (slots_.size() - 1)];
  }
  void PopFront() {
    PSRING_CHECK(!empty());
    ++begin_;
  }

  // 0 is the front.
  T& operator[](size_t i) { return slots_[(begin_ + i) & (slots_.size() - 1)]; }
  const T& operator[](size_t i) const { return slots_[(begin_ + i) & (slots_.size() - 1)]; }
  T& front() { return (*this)[0]; }
  const T& front() const { return (*this)[0]; }
  T& back() { return (*this)[size() - 1]; }
  const T& back() const { return (*this)[size() - 1]; }

  // Number of elements removed so far: the element at i is the (popped() + i)-th that was pushed, from 0.
  size_t popped() const { return begin_; }

 private:
  void Grow() {
    std::vector<T> larger(2 * slots_.size());
    for (size_t i = begin_; i != end_; ++i) {
      larger[i & (larger.size() - 1)] = std::move(slots_[i & (slots_.size() - 1)]);
    }
    slots_ = std::move(larger);
  }

  std::vector<T> slots_;  // a power of two
  size_t begin_ = 0, end_ = 0;
};

}  // namespace psring
