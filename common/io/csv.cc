#include "common/io/csv.h"

#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/base/check.h"

namespace psring {
namespace {

constexpr size_t kMaxRowBytes = 64 << 10, kMaxRowFields = 1024;
constexpr char kPlainNumbers[] = "write numbers with a decimal point and without thousands separators";

bool IsLineEnd(char c) { return c == '\n' || c == '\r'; }
bool IsSpace(char c) { return c == ' ' || c == '\t'; }
bool IsDigit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }
bool IsControl(char c) {
  return absl::ascii_iscntrl(static_cast<unsigned char>(c)) && !IsSpace(c) && !IsLineEnd(c);
}

bool AllEmpty(absl::Span<const CsvField> fields) {
  return std::all_of(fields.begin(), fields.end(), [](const CsvField& f) { return f.text.empty(); });
}

// The one that occurs most often in the first record outside quotes.
char FindDelimiter(absl::string_view text) {
  constexpr std::array<char, 3> kDelimiters = {',', ';', '\t'};
  std::array<int, 3> counts = {};
  bool open = false;
  for (const char c : text.substr(0, kMaxRowBytes)) {
    if (IsLineEnd(c) && !open) break;
    open = open != (c == '"');
    for (size_t i = 0; i < kDelimiters.size() && !open; ++i) counts[i] += c == kDelimiters[i];
  }
  const auto most = std::max_element(counts.begin(), counts.end());
  return kDelimiters[static_cast<size_t>(most - counts.begin())];
}

// With the only comma of "12,25" replaced by a point; empty: there is no comma, or it may separate thousands.
std::string WithDecimalPoint(const CsvField& field, char delimiter) {
  const std::string& text = field.text;
  const size_t comma = text.find_first_of(",.");
  const bool only = comma != std::string::npos && text[comma] == ',' &&
                    text.find_first_of(",.", comma + 1) == std::string::npos;
  if (!only || comma == 0 || !IsDigit(text[comma - 1])) return "";
  if (comma + 1 == text.size() || !IsDigit(text[comma + 1])) return "";
  if (delimiter == ',' && !field.quoted) return "";
  const size_t first = text.find_first_of("0123456789");
  const bool thousands = text.size() == comma + 4 && text[first] != '0' && comma - first <= 3;
  if (delimiter != ';' && thousands) return "";
  return absl::StrReplaceAll(text, {{",", "."}});
}

}  // namespace

std::string CsvLine(const std::vector<std::string>& fields) {
  std::string line;
  for (const std::string& field : fields) {
    if (&field != &fields.front()) line += ',';
    if (field.find_first_of(",\"\r\n") == std::string::npos) {
      line += field;
    } else {
      absl::StrAppend(&line, "\"", absl::StrReplaceAll(field, {{"\"", "\"\""}}), "\"");
    }
  }
  return line + "\n";
}

CsvReader::CsvReader(absl::string_view text) : rest_(text) {
  absl::ConsumePrefix(&rest_, "\xEF\xBB\xBF");  // UTF-8's byte order mark
  // Comments come before the first record, which shows the delimiter. Next finds an error again.
  const absl::string_view all = rest_;
  while (delimiter_ == 0 && Next().value_or(false)) {
  }
  rest_ = all;
  next_line_ = 1;
}

absl::StatusOr<bool> CsvReader::Next() {
  while (!rest_.empty()) {
    line_ = next_line_;
    PSRING_RETURN_IF_ERROR(ReadRecord());
    const bool ends = absl::ConsumePrefix(&rest_, "\r\n") || absl::ConsumePrefix(&rest_, "\n") ||
                      absl::ConsumePrefix(&rest_, "\r");
    next_line_ += ends ? 1 : 0;
    if (comment_) return true;
    if (AllEmpty(fields_)) continue;
    while (fields_.size() > columns_.size() && fields_.back().text.empty()) fields_.pop_back();
    if (!columns_.empty()) PSRING_RETURN_IF_ERROR(CheckColumns());
    return true;
  }
  return false;
}

absl::StatusOr<bool> CsvReader::NextRow() {
  while (true) {
    PSRING_ASSIGN_OR_RETURN(const bool any, Next());
    if (!any || !comment_) return any;
  }
}

absl::Status CsvReader::ReadRecord() {
  const size_t begin = rest_.find_first_not_of(" \t");
  comment_ = begin != absl::string_view::npos && rest_[begin] == '#';
  if (comment_) return ReadComment();
  const char delimiter = delimiter_ != 0 ? delimiter_ : FindDelimiter(rest_);
  PSRING_RETURN_IF_ERROR(ReadFields(delimiter));
  // A spreadsheet quotes a comment that contains the delimiter.
  CsvField& first = fields_.front();
  comment_ = first.quoted && AllEmpty(absl::MakeConstSpan(fields_).subspan(1)) &&
             absl::StartsWith(first.text, columns_.empty() ? "#" : "# ");
  if (comment_) {
    first.text.erase(0, 1);
    fields_.resize(1);
  } else if (!AllEmpty(fields_)) {
    delimiter_ = delimiter;
  }
  return absl::OkStatus();
}

absl::Status CsvReader::ReadComment() {
  absl::string_view line = rest_.substr(0, rest_.find_first_of("\r\n"));
  if (line.size() > kMaxRowBytes) return TooLong();
  for (const char c : line) {
    if (IsControl(c)) return ControlCharacter(c);
  }
  rest_.remove_prefix(line.size());
  const std::string padding = {' ', '\t', delimiter_ == 0 ? ',' : delimiter_};
  line = line.substr(0, line.find_last_not_of(padding) + 1);
  line.remove_prefix(line.find('#') + 1);
  fields_.assign(1, CsvField{.text = std::string(line)});
  const auto delimiters = static_cast<size_t>(std::count(line.begin(), line.end(), delimiter_));
  const bool like_row = columns_.size() > 1 && delimiters + 1 == columns_.size() && IsDigit(line.back());
  if (!like_row || line.front() == ' ') return absl::OkStatus();
  return Error("'#", line, "' is a comment or a row; write a space after the #, or quote the name: \"#",
               line.substr(0, line.find(delimiter_)), "\"");
}

absl::Status CsvReader::ReadFields(char delimiter) {
  fields_.assign(1, CsvField());
  bool open = false;  // in quotes
  size_t i = 0;
  for (; i < rest_.size() && (open || !IsLineEnd(rest_[i])); ++i) {
    if (i == kMaxRowBytes) return open ? NotClosed() : TooLong();
    CsvField& field = fields_.back();
    const char c = rest_[i], next = i + 1 < rest_.size() ? rest_[i + 1] : '\0';
    if (IsControl(c)) return ControlCharacter(c);
    if (open && c == '"' && next == '"') {
      field.text += c;
      ++i;
    } else if (open) {
      if (c == '\n' || (c == '\r' && next != '\n')) ++next_line_;
      if (c != '"') field.text += c;
      open = c != '"';
    } else if (c == delimiter) {
      if (fields_.size() == kMaxRowFields) return Error("it has more than ", kMaxRowFields, " fields");
      fields_.emplace_back();
    } else if (field.quoted) {
      if (!IsSpace(c)) return Error("field ", fields_.size(), " has text after its closing quote");
    } else if (c == '"' && absl::StripAsciiWhitespace(field.text).empty()) {
      field = {.quoted = true};
      open = true;
    } else {
      field.text += c;
    }
  }
  if (open) return NotClosed();
  rest_.remove_prefix(i);
  for (CsvField& field : fields_) {
    if (!field.quoted) absl::StripAsciiWhitespace(&field.text);
  }
  return absl::OkStatus();
}

absl::Status CsvReader::ReadHeader() {
  PSRING_ASSIGN_OR_RETURN(const bool any, NextRow());
  return any ? NameColumns() : InvalidArgument("it is empty; it needs a header");
}

absl::Status CsvReader::NameColumns() {
  for (const CsvField& field : fields_) {
    if (std::find(columns_.begin(), columns_.end(), field.text) != columns_.end()) {
      return Error("the column '", field.text, "' appears twice");
    }
    columns_.push_back(field.text);
  }
  return absl::OkStatus();
}

absl::Status CsvReader::CheckColumns() {
  if (fields_.size() == columns_.size()) return absl::OkStatus();
  const bool more = fields_.size() > columns_.size();
  return Error(
      "it has ", fields_.size(), " fields; the header has ", columns_.size(),
      more ? absl::StrCat("; quote names that contain '", std::string(1, delimiter_), "' and ", kPlainNumbers)
           : "");
}

const CsvField& CsvReader::Field(absl::string_view column) const {
  static const CsvField kNone;
  const auto at = std::find(columns_.begin(), columns_.end(), column);
  return at == columns_.end() ? kNone : fields_[static_cast<size_t>(at - columns_.begin())];
}

absl::StatusOr<double> CsvReader::Number(absl::string_view column, double least, double most) {
  const CsvField& field = Field(column);
  PSRING_ASSIGN_OR_RETURN(const double value, NumberIn(column, field, least, most));
  const size_t at = field.text.find_first_of(",.");
  const char decimal = at == std::string::npos ? decimal_ : field.text[at];
  if (decimal_ != 0 && decimal != decimal_) {
    return Error(column, " '", field.text, "' has a decimal ", decimal == ',' ? "comma" : "point",
                 ", and a number above has a ", decimal == ',' ? "point" : "comma", "; ", kPlainNumbers);
  }
  decimal_ = decimal;
  return value;
}

absl::StatusOr<int64_t> CsvReader::WholeNumber(absl::string_view column, int64_t least, int64_t most) const {
  return WholeNumberIn(column, Field(column), least, most);
}

absl::StatusOr<double> CsvReader::NumberIn(absl::string_view name, const CsvField& field, double least,
                                           double most) const {
  const std::string with_point = WithDecimalPoint(field, delimiter_);
  const std::string& text = with_point.empty() ? field.text : with_point;
  // SimpleAtod also takes hexadecimal numbers.
  const bool decimal = text.find_first_not_of(" 0123456789+-.eE") == std::string::npos;
  double value = 0;
  if (decimal && absl::SimpleAtod(text, &value) && value >= least && value <= most) return value;
  return NotANumber(name, field, absl::StrCat("a number from ", least, " to ", most));
}

absl::StatusOr<int64_t> CsvReader::WholeNumberIn(absl::string_view name, const CsvField& field, int64_t least,
                                                 int64_t most) const {
  int64_t value = 0;
  if (absl::SimpleAtoi(field.text, &value) && value >= least && value <= most) return value;
  return NotANumber(name, field, absl::StrCat("a whole number from ", least, " to ", most));
}

absl::Status CsvReader::NotANumber(absl::string_view name, const CsvField& field,
                                   absl::string_view range) const {
  constexpr size_t kMaxShownBytes = 80;
  if (field.text.empty()) return Error(name, " is empty; it must be ", range);
  const std::string shown = absl::StrReplaceAll(absl::string_view(field.text).substr(0, kMaxShownBytes),
                                                {{"\n", " "}, {"\r", " "}});
  const bool separators = field.text.find_first_of(", '_\xC2\xE2") != std::string::npos ||  // also of UTF-8
                          std::count(field.text.begin(), field.text.end(), '.') > 1;
  return Error(name, " '", shown, "' is not ", range, separators ? "; " : "",
               separators ? kPlainNumbers : "");
}

absl::Status CsvReader::ControlCharacter(char c) const {
  return Error("it contains the control character ", static_cast<int>(c), "; save the file as text in UTF-8");
}

absl::Status CsvReader::TooLong() const { return Error("it has more than ", kMaxRowBytes, " bytes"); }

absl::Status CsvReader::NotClosed() const { return Error("a quote is not closed"); }

}  // namespace psring
