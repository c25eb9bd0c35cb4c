#include "experiments/layouts/axis_links.h"

#include <algorithm>

namespace psring {

AxisLinks AxisLinks::Of(const Cluster& cluster, int workers, int stride, int ranks) {
  const Shape shape = ShapeOf(cluster, workers);
  const int on_node = std::min(ranks, std::max(1, shape.ranks_per_node / stride));
  const Cluster loaded = WithNodes(cluster, shape.nodes);
  return {.cluster = &cluster,
          .ranks = ranks,
          .on_node = on_node,
          .rings = shape.ranks_per_node / on_node,
          .card = loaded.link_bytes_per_s * loaded.fraction / std::max(1.0, cluster.oversubscription)};
}

LinkBytes AxisLinks::HalfBytes(double bytes) const {
  if (ranks == 1) return {};
  const double sent = (ranks - 1.) / ranks * bytes;
  // Of a ring's neighbours, only the last on a node has its successor on another one.
  return {.inside = on_node > 1 ? sent : 0,
          .between = on_node < ranks ? rings * sent / cluster->cards_per_node : 0};
}

double AxisLinks::HalfSeconds(double bytes) const {
  if (ranks == 1) return 0;
  const LinkBytes sent = HalfBytes(bytes);
  const int across = on_node < ranks ? ranks / on_node - 1 : 0;  // hops of a chunk between nodes
  const double latency = across * cluster->latency_s + (ranks - 1 - across) * cluster->intra_latency_s;
  double seconds = sent.inside > 0 ? sent.inside / cluster->intra_bytes_per_s : 0;
  if (across > 0) {
    // One ring uses as many cards as it has parallel connections.
    const int used = std::min(cluster->cards_per_node, cluster->rings);
    const double of_ring = sent.between * cluster->cards_per_node / rings;
    seconds = std::max({seconds, sent.between / card, of_ring / (used * card)});
  }
  return latency + seconds;
}

LinkBytes AxisLinks::AllToAllBytes(double bytes) const {
  const double each = bytes / ranks;
  return {.inside = (on_node - 1) * each,
          .between = double(rings) * on_node * (ranks - on_node) * each / cluster->cards_per_node};
}

double AxisLinks::AllToAllSeconds(double bytes) const {
  if (ranks == 1) return 0;
  const LinkBytes sent = AllToAllBytes(bytes);
  const double latency = (ranks - on_node) * cluster->latency_s + (on_node - 1) * cluster->intra_latency_s;
  const double inside = sent.inside > 0 ? sent.inside / cluster->intra_bytes_per_s : 0;
  return latency + std::max(inside, sent.between / card);
}

double AxisLinks::MessageSeconds(double bytes, bool between) const {
  if (!between) return cluster->intra_latency_s + bytes / cluster->intra_bytes_per_s;
  return cluster->latency_s + std::max(bytes, MessageBytes(bytes, between).between) / card;
}

LinkBytes AxisLinks::MessageBytes(double bytes, bool between) const {
  if (!between) return {.inside = bytes};
  return {.between = rings * bytes / cluster->cards_per_node};
}

}  // namespace psring
