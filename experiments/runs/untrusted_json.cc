#include "experiments/runs/untrusted_json.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "common/io/json_shape.h"
#include "common/io/json_text.h"

namespace psring {

namespace {

constexpr size_t kDeepest = 32;
constexpr size_t kMostFields = 4096;  // of an object: finding one takes linear time

// nlohmann's parser with a callback searches an array for discarded values after each of its objects, which
// takes quadratic time.
class Builder : public nlohmann::json_sax<UntrustedJson> {
 public:
  Builder() = default;
  // For TakeElements.
  Builder(const std::string& field, const std::function<void(UntrustedJson&)>& take)
      : field_(&field), take_(&take) {}

  bool has_field() const { return has_field_; }
  // Discarded if the text was not JSON.
  UntrustedJson Take() { return std::move(root_); }

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t&) override { return Put(value); }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // not in JSON texts
  bool start_object(size_t) override { return Open(UntrustedJson::object()); }
  bool start_array(size_t) override { return Open(UntrustedJson::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (omitted_ == 0) key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    root_ = UntrustedJson(UntrustedJson::value_t::discarded);
    return false;
  }

 private:
  // Null: it is nested too deeply.
  UntrustedJson* Add(UntrustedJson value) {
    if (omitted_ > 0 || open_.size() > kDeepest) return nullptr;
    if (open_.empty()) return &(root_ = std::move(value));
    UntrustedJson& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool Put(UntrustedJson value) {
    Add(std::move(value));
    TakeLast();
    return true;
  }
  bool Open(UntrustedJson container) {
    if (UntrustedJson* const added = Add(std::move(container))) {
      const bool is_field = field_ != nullptr && open_.size() == 1 && open_[0]->is_object();
      if (is_field && added->is_array() && key_ == *field_) {
        has_field_ = true;
        taken_ = added;
      }
      open_.push_back(added);
    } else {
      ++omitted_;
    }
    return true;
  }
  bool Close() {
    if (omitted_ > 0) {
      --omitted_;
    } else {
      if (open_.back() == taken_) taken_ = nullptr;
      open_.pop_back();
      TakeLast();
    }
    return true;
  }
  // After a value is complete.
  void TakeLast() {
    if (taken_ == nullptr || open_.back() != taken_) return;
    (*take_)(taken_->back());
    taken_->erase(taken_->size() - 1);
  }

  const std::string* field_ = nullptr;
  const std::function<void(UntrustedJson&)>* take_ = nullptr;
  bool has_field_ = false;
  UntrustedJson* taken_ = nullptr;  // the array whose elements are taken, while it is open
  UntrustedJson root_;
  std::vector<UntrustedJson*> open_;  // a container's address is stable while it is the last of its parent
  size_t omitted_ = 0;                // open containers that are nested too deeply
  std::string key_;
};

}  // namespace

UntrustedJson ParseUntrusted(const std::string& text) {
  if (ShapeOfJson(text).fields > kMostFields) return UntrustedJson(UntrustedJson::value_t::discarded);
  Builder builder;
  UntrustedJson::sax_parse(text, &builder);
  return builder.Take();
}

bool TakeElements(const std::string& text, const std::string& field,
                  const std::function<void(UntrustedJson& element)>& take) {
  if (ShapeOfJson(text).fields > kMostFields) return false;
  Builder builder(field, take);
  return UntrustedJson::sax_parse(text, &builder) && builder.has_field();
}

std::string DumpUntrusted(const UntrustedJson& json) { return JsonText(json); }

double NumberAt(const UntrustedJson& json, const char* key, double otherwise) {
  if (!json.is_object()) return otherwise;
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : otherwise;
}

int64_t CountAt(const UntrustedJson& json, const char* key, int64_t otherwise) {
  constexpr double kMost = 9e15;  // doubles hold whole numbers up to here
  const double number = NumberAt(json, key, static_cast<double>(otherwise));
  return number >= -kMost && number <= kMost ? static_cast<int64_t>(number) : otherwise;
}

std::string TextAt(const UntrustedJson& json, const char* key) {
  if (!json.is_object()) return "";
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace psring
