#!/usr/bin/env python3
"""Limits the data members of a class and the lines of a function, and refuses names that are defined twice.

Many members or lines are signs of several ideas in one place; two types of one name in a program are undefined behaviour,
of which neither compiler nor linker says a word. What is right all the same is listed in EXCEPTIONS with the reason. The sources are read with simple rules that fit this tree: comments, literals and
preprocessor lines are blanked out, then braces are counted.

`structure_test.py` checks the tree; `structure_test.py FILE...` prints what it finds in files.
"""
import bisect
import pathlib
import re
import sys

MOST_MEMBERS = 25
MOST_LINES = 80
FOLDERS = "base metadata tiering gpu fs client tools tests examples".split()

# "file: name": the reason for the exception.
EXCEPTIONS = {
    "fs/control/options.hpp: MountOptions": "one member for each option",
    "gpu/cuda_api.hpp: CudaApi": "one member for each function of libcuda that is used",
    "tests/unit/fs/options_test.cpp: ConfigFileTest.ErrorsNameFileLineAndWhatIsAllowed": "a table of cases",
    "tests/unit/fs/options_test.cpp: ConfigFileTest.GivesEveryOption": "a file with every option, and what it means",
    "tests/unit/client/compat/cufile_test.cpp: sluice::dropin::is_on_mount(int fd)": "takes the place of the real one in the test",
}
# Each program has its own.
ENTRY_POINTS = re.compile(r"^(main|LLVMFuzzerTestOneInput)\(")

# Literals, comments and preprocessor lines are ignored.
NOISE = re.compile(
    r"""//(?:\\\n|[^\n])* | /\*.*?\*/
      | R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"
      | "(?:\\.|[^"\\\n])*"
      | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'
      | ^[ \t]*\#(?:\\\n|[^\n])*""",
    re.X | re.S | re.M,
)
ANNOTATION = re.compile(
    r"\b(?:GUARDED_BY|PT_GUARDED_BY|REQUIRES|REQUIRES_SHARED|EXCLUDES|ACQUIRE|ACQUIRE_SHARED|RELEASE|"
    r"RELEASE_SHARED|TRY_ACQUIRE|TRY_ACQUIRE_SHARED|CAPABILITY|ASSERT_CAPABILITY|ASSERT_SHARED_CAPABILITY|"
    r"ACQUIRED_BEFORE|ACQUIRED_AFTER|alignas|__attribute__|noexcept|explicit|requires|"
    r"decltype)\s*(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))"
)
CLASS = re.compile(r"\b(?:class|struct|union)\s+(?:\w+\s+)*?(\w+(?:::\w+)*)\s*(?:final\s*)?(?::(?!:).*)?$", re.S)
NO_MEMBER = re.compile(r"^(?:using|typedef|friend|static|template|enum|class|struct|union|extern|operator)\b")
FUNCTION_NAME = re.compile(r"((?:~?\w+|operator\s*[^\s\w(]+|operator\s*\(\))(?:<[^<>()]*>)?)\s*\($")


def blanked(text):
    """The text with noise replaced by spaces; lines stay the same."""
    return NOISE.sub(lambda m: ('""' if m.group()[0] in "\"R'" else "") + re.sub(r"[^\n]", "", m.group()), text)


def without_nesting(text, pairs):
    """The text without the brackets of these pairs and their content."""
    out, depth = [], 0
    for i, c in enumerate(text):
        if c in pairs and not (c == "<" and text[i - 1 : i] in "<="):
            depth += 1
        elif depth and c in pairs.values() and not (c == ">" and text[i - 1 : i] in "-="):
            depth -= 1
        elif not depth:
            out.append(c)
    return "".join(out)


def members_in(statement):
    """The number of data members that a statement in a class declares."""
    statement = re.sub(r"\b(?:public|private|protected)\s*:(?!:)", " ", statement)
    statement = re.sub(r"\[\[.*?\]\]", " ", ANNOTATION.sub(" ", statement), flags=re.S).strip()
    statement = re.sub(r"^(?:mutable|inline|constinit|volatile)\s+", "", statement)
    if not statement or NO_MEMBER.match(re.sub(r"^(?:class|struct|enum|union)\s+(?=\w+\s+[*&]*\w+)", "", statement)):
        return 0
    plain = without_nesting(statement, {"<": ">"})
    if re.search(r"\(\s*\*", plain):  # a pointer to a function
        return 1
    plain = without_nesting(plain, {"{": "}", "[": "]"})
    declarators = []
    depth = 0
    current = ""
    for c in plain:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            declarators.append(current)
            current = ""
        else:
            current += c
    declarators.append(current)
    if "(" in declarators[0].split("=")[0] or "operator" in plain:
        return 0  # a function
    return sum(1 for each in declarators if re.search(r"\w", each))


class Source:
    """Finds classes and functions in one file: (name, line, members) and (name, line, lines)."""

    def __init__(self, text):
        self.text = blanked(text)
        self.starts = [0] + [m.end() for m in re.finditer("\n", self.text)]
        self.closing = self._match()
        self.classes, self.functions = [], []
        self.linked = []  # what other files can see: (name with its namespaces, line), of functions with parameters
        self._scope(0, len(self.text), None, "", "")

    def line(self, at):
        return bisect.bisect_right(self.starts, at)

    def _match(self):
        closing, stack = {}, []
        for m in re.finditer(r"[{}]", self.text):
            if m.group() == "{":
                stack.append(m.start())
            elif stack:
                closing[stack.pop()] = m.start()
            else:
                raise ValueError(f"line {self.line(m.start())}: a brace too many")
        if stack:
            raise ValueError(f"line {self.line(stack[-1])}: a brace is not closed")
        return closing

    def _scope(self, at, end, of_class, prefix, space):
        """Reads a namespace or a class. Returns the number of its data members.

        `space` is the namespace, None if it is an unnamed one.
        """
        members, head, begin = 0, "", at
        while at < end:
            c = self.text[at]
            if c == ";":
                members += members_in(head) if of_class else 0
                head, at = "", at + 1
            elif c == "{":
                close = self.closing[at]
                kind, name = self._kind(head, close)
                if kind == "initializer":
                    head, at = head + "{}", close + 1
                    continue
                first = begin + (len(self.text[begin:at]) - len(self.text[begin:at].lstrip()))
                self._note_linked(kind, name, head, of_class, prefix, space, self.line(first))
                if kind == "namespace":
                    hidden = space is None or name is None
                    self._scope(at + 1, close, None, prefix, None if hidden else space + name)
                elif kind == "class":
                    count = self._scope(at + 1, close, name, prefix + name + "::", space)
                    self.classes.append((prefix + name, self.line(first), count))
                elif kind == "function":
                    self.functions.append((prefix + name, self.line(first), self.line(close) - self.line(first) + 1))
                    self._local_classes(at + 1, close, prefix + name + "::")
                after = re.compile(r"\s*([^;{}]*);").match(self.text, close + 1)
                if kind in ("class", "enum") and after and after.start() < end:
                    # "struct { ... } name;" is a member; "};" is not.
                    members += members_in("int " + after.group(1)) if of_class and after.group(1).strip() else 0
                    close = after.end() - 1
                head, at = "", close + 1
            else:
                head, at = head + c, at + 1
                continue
            begin = at
        return members

    def _note_linked(self, kind, name, head, of_class, prefix, space, line):
        """Notes a type or a function that the linker, or a reader, can confuse with another of its name."""
        if space is None or re.search(r"\btemplate\b", head):
            return
        if kind in ("class", "enum") and name and name != "(anonymous)":
            self.linked.append((space + prefix + name, line))
        elif kind == "function" and not of_class and not re.search(r"\.|^operator", name) and not re.search(r"\bstatic\b", head):
            plain, depth = ANNOTATION.sub(" ", head), 0
            start = plain.find("(")
            for at in range(start, len(plain)):
                depth += (plain[at] == "(") - (plain[at] == ")")
                if depth == 0:
                    self.linked.append((space + prefix + name + re.sub(r"\s+", " ", plain[start : at + 1]), line))
                    break

    def _local_classes(self, at, end, prefix):
        for m in re.compile(r"\b(?:class|struct)\s+(\w+)(?:\s+final)?\s*(?::[^;{}()]*)?\{").finditer(self.text, at, end):
            brace = m.end() - 1
            count = self._scope(brace + 1, self.closing[brace], m.group(1), prefix + m.group(1) + "::", None)
            self.classes.append((prefix + m.group(1), self.line(m.start()), count))

    def _kind(self, head, close):
        """What a brace opens: namespace, class, enum, function, initializer; and its name."""
        head = re.sub(r"\b(?:public|private|protected)\s*:(?!:)", " ", head)
        plain = ANNOTATION.sub(" ", head)
        named = re.search(r"\bnamespace\b\s*([\w:]*)\s*$", plain)
        if named:
            return "namespace", named.group(1) + "::" if named.group(1) else None
        if re.search(r'\bextern\s*""\s*$', plain):
            return "namespace", ""
        flat = without_nesting(plain, {"<": ">"})
        if "(" not in flat and "=" not in flat:
            enum = re.search(r"\benum\b(?:\s+(?:class|struct))?(?:\s+(\w+))?", flat)
            if enum:
                return "enum", enum.group(1) or ""
            found = CLASS.search(re.sub(r"\btemplate\s*", "", flat).strip())
            if found:
                return "class", found.group(1)
            if re.search(r"\b(?:class|struct|union)\s*$", flat):
                return "class", "(anonymous)"
        following = re.compile(r"\s*(.?)", re.S).match(self.text, close + 1).group(1)
        parens = flat.find("(")
        if parens < 0 or following in ("," , "{"):
            return "initializer", ""
        if re.search(r"[^=!<>]=(?!=)", re.sub(r"operator\s*\S+\s*\(", "(", flat[: parens + 1])):
            return "initializer", ""
        name = FUNCTION_NAME.search(re.sub(r"\s+", " ", flat[: parens + 1]))
        test = re.match(r"\s*(TEST(?:_[FP])?|TYPED_TEST(?:_P)?)\s*\(\s*(\w+)\s*,\s*(\w+)", flat)
        if test:
            return "function", f"{test.group(2)}.{test.group(3)}"
        qualified = re.search(r"([\w~]+(?:::[~\w]+)*)\s*\($", re.sub(r"\s+", " ", flat[: parens + 1]))
        if qualified:
            return "function", qualified.group(1)
        return "function", name.group(1) if name else "(unnamed)"


def main(arguments):
    root = pathlib.Path(__file__).resolve().parents[2]
    bad, used, classes, functions = [], set(), 0, 0
    linked = {}  # name: where it was defined first
    paths = [pathlib.Path(a) for a in arguments] or sorted(
        p for folder in FOLDERS for p in (root / folder).rglob("*") if p.suffix in (".cpp", ".hpp", ".h", ".c", ".cu"))
    for path in paths:
        name = str(path.resolve().relative_to(root))
        try:
            source = Source(path.read_text())
        except ValueError as error:
            bad.append(f"{name}: can't be read: {error}")
            continue
        classes += len(source.classes)
        functions += len(source.functions)
        if arguments:
            for each, line, count in source.classes:
                print(f"{name}:{line}: {each} has {count} members")
            for each, line, count in source.functions:
                print(f"{name}:{line}: {each}() has {count} lines")
        for each, line in source.linked:
            first = linked.setdefault(each, f"{name}:{line}")
            if first.rpartition(":")[0] == name or ENTRY_POINTS.match(each):
                continue
            key = f"{name}: {each}"
            used.add(key)
            if key not in EXCEPTIONS:
                bad.append(f"{name}:{line}: {each} is defined in {first}, too: rename one, or put it in an unnamed namespace")
        for kind, found, most in (("data members", source.classes, MOST_MEMBERS), ("lines", source.functions, MOST_LINES)):
            for each, line, count in found:
                if count <= most:
                    continue
                key = f"{name}: {each}"
                used.add(key)
                if key not in EXCEPTIONS:
                    bad.append(f"{name}:{line}: {each} has {count} {kind}, {most} are allowed: split it, "
                               "or say in tests/lint/structure_test.py why it is one idea")
    if not arguments:
        bad += [f"tests/lint/structure_test.py excuses '{key}', which needs no excuse" for key in EXCEPTIONS if key not in used]
        if classes < 300 or functions < 3000:
            bad.append(f"only {classes} classes and {functions} functions were found")
    print(f"{classes} classes and {functions} functions")
    print("\n".join(bad), file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
