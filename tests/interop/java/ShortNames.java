import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.kafka.common.security.kerberos.KerberosName;
import org.apache.kafka.common.security.kerberos.KerberosShortNamer;

/** Apache Kafka's user name for each line "rule,rule TAB principal" of a file, in the realm EXAMPLE.COM. */
public class ShortNames {
    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] parts = line.split("\t", -1);
            KerberosShortNamer namer;
            try {
                namer = KerberosShortNamer.fromUnparsedRules("EXAMPLE.COM", List.of(parts[0].split(",")));
            } catch (RuntimeException error) {
                System.out.println("!rules");
                continue;
            }
            try {
                System.out.println("=" + namer.shortName(KerberosName.parse(parts[1])));
            } catch (Exception error) {
                System.out.println("!name");
            }
        }
    }
}
