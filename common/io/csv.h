// CSV as in RFC 4180, with "\n" at the end of a written record.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/errors.h"

namespace psring {

// One record. Fields that contain a comma, a quote or a line break are quoted.
std::string CsvLine(const std::vector<std::string>& fields);

struct CsvField {
  std::string text;     // without quotes; without spaces around it if it had no quotes
  bool quoted = false;  // a quoted '#' begins a name, not a comment
};

// Reads a file's records, also as spreadsheets save them: with a byte order mark, CRLF, semicolons or tabs
// instead of commas, and rows that empty fields make equally long. Memory is that of one record. Errors name
// the line, and the column of a number.
class CsvReader {
 public:
  // `text` must outlive the reader.
  explicit CsvReader(absl::string_view text);

  // Reads the next record that has text, or a comment: a line that begins with '#', without the '#', as its
  // only field. False after the last one.
  absl::StatusOr<bool> Next();
  // The same without comments.
  absl::StatusOr<bool> NextRow();
  bool is_comment() const { return comment_; }
  const std::vector<CsvField>& fields() const { return fields_; }

  // Makes the next row, or the current one, the header: each row from here on must have these columns.
  absl::Status ReadHeader();
  absl::Status NameColumns();
  const std::vector<std::string>& columns() const { return columns_; }
  // Of the current record; an empty field if there is no such column.
  const CsvField& Field(absl::string_view column) const;

  // The number that the whole field is. It may have a decimal comma if that cannot separate fields or
  // thousands, and if no number above it has a decimal point.
  absl::StatusOr<double> Number(absl::string_view column, double least, double most);
  absl::StatusOr<int64_t> WholeNumber(absl::string_view column, int64_t least, int64_t most) const;
  // The same for a field that is not in a column, such as `text` of a comment.
  absl::StatusOr<double> NumberIn(absl::string_view name, const CsvField& field, double least,
                                  double most) const;
  absl::StatusOr<int64_t> WholeNumberIn(absl::string_view name, const CsvField& field, int64_t least,
                                        int64_t most) const;

  // InvalidArgument: "line 5: " and `what`.
  template <typename... Parts>
  absl::Status Error(const Parts&... what) const {
    return InvalidArgument("line ", line_, ": ", what...);
  }

 private:
  absl::Status ReadRecord();
  absl::Status ReadComment();
  absl::Status ReadFields(char delimiter);
  absl::Status CheckColumns();
  absl::Status NotANumber(absl::string_view name, const CsvField& field, absl::string_view range) const;
  absl::Status ControlCharacter(char c) const;
  absl::Status TooLong() const;
  absl::Status NotClosed() const;

  absl::string_view rest_;
  char delimiter_ = 0;  // 0: no record but comments yet
  char decimal_ = 0;    // of the numbers in columns; 0: none had a fraction yet
  int line_ = 0, next_line_ = 1;
  bool comment_ = false;
  std::vector<CsvField> fields_;
  std::vector<std::string> columns_;
};

}  // namespace psring
