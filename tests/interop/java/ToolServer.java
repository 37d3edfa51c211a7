import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools one after the other in one JVM, because starting a JVM for each costs
 * seconds. Asked over stdin: a count of strings (main class and arguments), the strings, the tool's own
 * standard input. Answered over stdout: exit status, standard output, standard error. All lengths are
 * 32 bit, big endian.
 */
public class ToolServer {
    static class Exited extends RuntimeException {
        Exited() {
            super(null, null, false, false);
        }
    }

    /** The first status counts: many tools catch what ends them and exit once more. */
    static Integer exitStatus;

    /** What a tool wants done when the JVM ends: for us, when the tool ends. */
    static List<Runnable> hooks = new ArrayList<>();

    static void exit(int status, String message) {
        if (exitStatus == null) {
            exitStatus = status;
        }
        if (message != null) {
            System.err.println(message);
        }
        throw new Exited();
    }

    public static void main(String[] none) throws Exception {
        DataInputStream asked = new DataInputStream(System.in);
        DataOutputStream answered = new DataOutputStream(System.out);
        Exit.setExitProcedure(ToolServer::exit);
        Exit.setHaltProcedure(ToolServer::exit);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        while (true) {
            int count;
            try {
                count = asked.readInt();
            } catch (EOFException end) {
                return;
            }
            String mainClass = string(asked);
            String[] arguments = new String[count - 1];
            for (int i = 0; i < arguments.length; i++) {
                arguments[i] = string(asked);
            }
            serve(mainClass, arguments, new ByteArrayInputStream(bytes(asked)), answered);
        }
    }

    static void serve(
            String mainClass, String[] arguments, InputStream input, DataOutputStream answered)
            throws Exception {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        System.setIn(input);
        System.setOut(new PrintStream(output, true, "UTF-8"));
        System.setErr(new PrintStream(errors, true, "UTF-8"));
        exitStatus = null;
        try {
            Class.forName(mainClass).getMethod("main", String[].class)
                    .invoke(null, (Object) arguments);
        } catch (InvocationTargetException wrapped) {
            Throwable cause = wrapped.getCause();
            if (!(cause instanceof Exited)) {
                cause.printStackTrace();
                exitStatus = 1;
            }
        }
        hooks.forEach(Runnable::run);
        hooks.clear();
        System.out.flush();
        System.err.flush();
        answered.writeInt(exitStatus == null ? 0 : exitStatus);
        for (ByteArrayOutputStream stream : new ByteArrayOutputStream[] {output, errors}) {
            answered.writeInt(stream.size());
            stream.writeTo(answered);
        }
        answered.flush();
    }

    static byte[] bytes(DataInputStream from) throws Exception {
        byte[] read = new byte[from.readInt()];
        from.readFully(read);
        return read;
    }

    static String string(DataInputStream from) throws Exception {
        return new String(bytes(from), "UTF-8");
    }
}
