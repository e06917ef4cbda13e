#!/bin/sh
# Is there a Java that Spark runs on? Exit code 2 and one line that says what to install when there is none.
set -u
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
case $version in
    '' | *[!0-9]*) found="no Java was found" ;;
    *) [ "$version" -ge 17 ] && exit 0; found="$java is Java $version" ;;
esac
echo "raftmq: Spark needs Java 17 or later, $found: apt install openjdk-17-jre-headless" >&2
exit 2
