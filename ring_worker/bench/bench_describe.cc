#include "ring_worker/bench/bench_describe.h"

#include <nlohmann/json.hpp>

#include "common/io/json_text.h"
#include "ring_worker/groups/process_group.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {
std::string DescribeJson() {
  using Json = nlohmann::ordered_json;
  Json json = {{"collectives", Json::array()}, {"backends", Json::array()}};
  for (const Collective collective : kCollectives) json["collectives"].push_back(Name(collective));
  for (const BackendRow& row : Backends()) {
    Json algorithms = Json::object();
    for (const Collective collective : kCollectives) {
      algorithms[Name(collective)] = row.algorithms(collective);
    }
    json["backends"].push_back({{"name", row.name},
                                {"summary", row.summary},
                                {"available", row.available()},
                                {"missing", row.missing},
                                {"algorithms", algorithms},
                                {"transports", row.transports}});
  }
  return JsonText(json, 2);
}

}  // namespace psring
