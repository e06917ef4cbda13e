package interop;

import java.io.PrintStream;
import java.util.Collection;
import java.util.Map;

/** Reports to whoever started the program: one JSON object per line of standard output. */
final class Out {
    /** Whatever others make of System.out meanwhile. */
    private static final PrintStream LINES = System.out;

    private Out() {
    }

    /** Prints {"event": name, ...} with the given names and values in turn. */
    static synchronized void event(String name, Object... pairs) {
        StringBuilder line = new StringBuilder("{\"event\":");
        append(line, name);
        for (int i = 0; i < pairs.length; i += 2) {
            line.append(',');
            append(line, pairs[i]);
            line.append(':');
            append(line, pairs[i + 1]);
        }
        LINES.println(line.append('}'));
        LINES.flush();
    }

    private static void append(StringBuilder line, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            line.append(value);
        } else if (value instanceof Map) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                line.append(separator);
                append(line, String.valueOf(entry.getKey()));
                line.append(':');
                append(line, entry.getValue());
                separator = ",";
            }
            line.append(separator.equals("{") ? "{}" : "}");
        } else if (value instanceof Collection) {
            String separator = "[";
            for (Object item : (Collection<?>) value) {
                line.append(separator);
                append(line, item);
                separator = ",";
            }
            line.append(separator.equals("[") ? "[]" : "]");
        } else {
            quote(line, value.toString());
        }
    }

    private static void quote(StringBuilder line, String text) {
        line.append('"');
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                line.append('\\').append(c);
            } else if (c < 0x20 || c > 0x7e) {
                line.append(String.format("\\u%04x", (int) c));
            } else {
                line.append(c);
            }
        }
        line.append('"');
    }
}
