// The theory of context parallelism: what a rank sends for attention, how evenly ranks compute, and from
// which length of a sequence each way pays. Pure.
//
// C ranks divide the s tokens of a sequence; h is the model's width. Attention is causal.
// Sources: Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3; Jacobs et al. 2023,
// DeepSpeed Ulysses, section 3.2.
#pragma once

namespace psring {

// Values that a rank sends for a layer, forward and backward, as a multiple of the s h values of an
// activation. Ring: keys and values pass C - 1 ranks in both, and their gradients in backward: 6 (C-1)/C.
double RingValues(int ranks);
// Ulysses: in both, all but 1/C of the rank's queries, keys, values and outputs: 8 (C-1)/C^2.
double UlyssesValues(int ranks);

// Of the ring's steps: the work that an even division would need in the time that it takes, when all wait in
// each step for the rank with the most pairs of a query and an earlier key. Of one chunk per rank: C/(2C-1);
// of one from the beginning and one from the end: 1.
double ContiguousShare(int ranks);

// Of a layer's attention and a micro-batch, in seconds: computing the block of the first of the ring's C
// steps and that of each other one, and sending keys and values, or their gradients, to the next rank.
struct RingSteps {
  int ranks = 1;
  double first_s = 0, block_s = 0, hop_s = 0;
};
// How long a rank waits for bytes in forward, in which a step's block is computed while the keys of the next
// one arrive; and in backward, in which the gradient of a step's keys is also sent on during the next step,
// and nothing hides the last one.
double RingForwardWait(const RingSteps& steps);
double RingBackwardWait(const RingSteps& steps);

struct SequenceSpeed {
  double flops_per_s = 0;  // of a rank
  double bytes_per_s = 0;  // of its link, in each direction
  double value_bytes = 4;
};
// Tokens per rank from which computing a block of forward, 2 h c^2 flops of c tokens on each side, takes as
// long as sending its keys and values, 2 h c values.
double RingHiddenFrom(const SequenceSpeed& speed);
// Tokens per rank from which forward of the ring waits less than that of Ulysses: (1 - 2/C) of
// RingHiddenFrom.
double RingPaysFrom(int ranks, const SequenceSpeed& speed);

}  // namespace psring
