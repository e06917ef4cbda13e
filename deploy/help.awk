# The table of `make help`: lines `## TARGET: what it does` of the Makefile, wrapped.
/^## [a-z-]+: / {
    target = substr($2, 1, length($2) - 1)
    line = sprintf("make %-22s", target)
    for (n = 3; n <= NF; n++) {
        if (length(line) + length($n) + 1 > 120) {
            print line
            line = sprintf("%27s", "")
        }
        line = line " " $n
    }
    print line
}
