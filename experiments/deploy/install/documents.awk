# Turns the text of --help-all into a man page (-v page=NAME -v version=V) or, with -v flags=1, into a list of flags.

function escaped(text) {
  gsub(/\\/, "\\e", text)
  gsub(/-/, "\\-", text)
  return text ~ /^[.']/ ? "\\&" text : text
}

# The names and the value of a flag, or the name of a verb: the text before two spaces.
function head(line) {
  sub(/^  /, "", line)
  return match(line, /  +/) ? substr(line, 1, RSTART - 1) : line
}

flags {
  if ($0 ~ /^  -/) {
    count = split(head($0), words, /[ ,]+/)
    for (i = 1; i <= count; ++i) if (words[i] ~ /^-/) print words[i]
  }
  next
}

NR == 1 { summary = $0; next }
/^Usage:/ {
  sub(/^Usage: /, "")
  printf ".TH %s 1 \"\" \"psring %s\"\n", toupper(page), version
  printf ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n%s\n", escaped(page), escaped(summary), escaped($0)
  begun = 1
  next
}
!begun { summary = summary " " $0; next }
/^[^ ].*:$/ { sub(/:$/, ""); printf ".SH %s\n", escaped(toupper($0)); next }
/^  [^ ]/ {
  name = head($0)
  printf ".TP\n.B %s\n", escaped(name)
  rest = substr($0, length(name) + 3)
  sub(/^ +/, "", rest)
  if (rest != "") print escaped(rest)
  next
}
/[^ ]/ { sub(/^ +/, ""); print escaped($0) }
END {
  if (!flags && page ~ /^psring/) print ".SH SEE ALSO\nThe folder share/doc/psring beside this program."
}
